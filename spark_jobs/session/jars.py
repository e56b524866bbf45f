"""Additional jars for Spark: two of Delta, downloaded and verified, and our classes in Java, compiled.

They are used from a folder, without network. Ivy downloads Delta's jars; it is part of pyspark and knows the
central repository, so no registry address is needed. Janino compiles our classes; it is part of pyspark too,
so a Java without a compiler is sufficient. `python -m spark_jobs.session.jars` creates the folder.
"""

import argparse  # not click: `make doctor` imports this module before any package is installed
import hashlib
import importlib.util
import os
import ssl
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from xml.sax.saxutils import quoteattr

from spark_jobs.session.archive import STAMP
from spark_jobs.session.java import CACHE_FOLDER, find_java

DEFAULT_JARS_FOLDER = CACHE_FOLDER / "jars"
FETCH_TIMEOUT_S = 600.0
COMPILE_TIMEOUT_S = 100.0
LOG_STORE_CLASS = "commitlog.LinkLogStore"  # commits on a local file system
OBJECT_LOG_STORE_CLASS = "commitlog.ConditionalLogStore"  # commits in an object store
CATALOG_CLASS = "commitlog.SessionCatalog"
CLASSES = (LOG_STORE_CLASS, OBJECT_LOG_STORE_CLASS, CATALOG_CLASS, "commitlog.LogTable")
COMPILER = "org.codehaus.commons.compiler.samples.CompilerDemo"
TRUSTSTORE_PASSWORD = "changeit"  # Java's own default; the store holds public certificates only


@dataclass(frozen=True)
class Jar:
    """An artifact of the central repository and the sha1 that its file must have."""

    organisation: str
    name: str
    revision: str
    sha1: str

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.revision}.jar"


DELTA_JARS = (
    Jar("io.delta", "delta-spark_4.2_2.13", "4.4.0", "c2ab26421b8de44a2161b5e0b7da7954049f1ca1"),
    Jar("io.delta", "delta-storage", "4.4.0", "a068e489ce20d7f79bc4ca2d3392f12adbb69ddd"),
)


class JarsUnavailable(RuntimeError):
    """The jars are neither in the cache nor available: the message states which, why, and the remedy."""


def jar_paths(cache: Path = DEFAULT_JARS_FOLDER) -> list[Path]:
    """Return the paths of the jars in `cache`, whether they exist or not."""
    return [*(cache / jar.file_name for jar in DELTA_JARS), _our_jar(cache)]


def missing_jars(cache: Path = DEFAULT_JARS_FOLDER) -> list[str]:
    """Return the names of the jars that `cache` lacks, or holds with wrong bytes."""
    ours = _our_jar(cache)
    return [jar.file_name for jar in _wrong_delta_jars(cache)] + ([] if ours.is_file() else [ours.name])


def ensure_jars(cache: Path = DEFAULT_JARS_FOLDER) -> list[Path]:
    """Return the paths of the jars; download or compile missing ones into `cache` first.

    A jar appears in `cache` only complete and with the right sha1 (temporary folder, then rename), so two
    callers at a time do no harm. Raises JarsUnavailable and JavaNotFound.
    """
    if missing := _wrong_delta_jars(cache):
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as folder:
            output = _fetch(missing, Path(folder))
            for jar in missing:
                fetched = Path(folder) / jar.file_name
                if not fetched.is_file():
                    raise JarsUnavailable(
                        f"{jar.file_name} could not be fetched into {cache}. Without network, copy it there "
                        "from another machine; behind a proxy, name it in JAVA_TOOL_OPTIONS "
                        f"(-Dhttps.proxyHost=... -Dhttps.proxyPort=...). Output of Ivy:\n{output[-2_000:]}"
                    )
                if not _is_right(fetched, jar):
                    raise JarsUnavailable(
                        f"{jar.file_name} has sha1 {_sha1(fetched)} instead of {jar.sha1} and was not kept: "
                        "something between this machine and the central repository changed it."
                    )
                fetched.replace(cache / jar.file_name)
    ours = _our_jar(cache)
    if not ours.is_file():
        with tempfile.TemporaryDirectory(dir=cache, prefix=".make-") as folder:
            _make_our_jar(Path(folder), cache).replace(ours)
    return jar_paths(cache)


def _our_jar(cache: Path) -> Path:
    """Return the path of our jar. Its name contains a digest of the sources, hence their version."""
    return cache / f"commitlog-java-{hashlib.sha256(b''.join(_sources().values())).hexdigest()[:12]}.jar"


def _sources() -> dict[str, bytes]:
    """Return the content of each file of Java, by its name."""
    names = [f"{each.rpartition('.')[2]}.java" for each in CLASSES]
    return {name: files("spark_jobs.session").joinpath(name).read_bytes() for name in names}


def _make_our_jar(folder: Path, cache: Path) -> Path:
    """Compile our classes in `folder`, with Delta's jars in `cache`. Raises JarsUnavailable."""
    target = folder / "ours.jar"
    sources = _sources()
    for name, content in sources.items():
        (folder / name).write_bytes(content)
    delta = [cache / jar.file_name for jar in DELTA_JARS]
    classes = os.pathsep.join(map(str, [*pyspark_jars(), *delta]))
    command = [
        str(find_java()),
        "-cp",
        classes,
        COMPILER,
        "-d",
        str(folder),
        "-classpath",
        classes,
        *(str(folder / name) for name in sources),
    ]
    output = _run(command, COMPILE_TIMEOUT_S, f"compiling {', '.join(sources)}")
    for each in CLASSES:
        if not (folder / f"{each.replace('.', '/')}.class").is_file():
            name = each.rpartition(".")[2]
            raise JarsUnavailable(f"{name}.java does not compile:\n{output[-2_000:]}")
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(folder.rglob("*.class")):
            archive.writestr(zipfile.ZipInfo(path.relative_to(folder).as_posix(), STAMP), path.read_bytes())
    return target


def _wrong_delta_jars(cache: Path) -> list[Jar]:
    return [jar for jar in DELTA_JARS if not _is_right(cache / jar.file_name, jar)]


def _sha1(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha1").hexdigest()


def _is_right(path: Path, jar: Jar) -> bool:
    return path.is_file() and _sha1(path) == jar.sha1


def _fetch(jars: list[Jar], folder: Path) -> str:
    """Run Ivy for `jars` into `folder`; return its output. A JRE without certificates gets those of this
    machine."""
    output = _run_ivy(jars, folder, java_options=[])
    if "SSLHandshakeException" in output and (bundle := _certificate_bundle()) is not None:
        truststore = _make_truststore(bundle, folder / "truststore.p12")
        options = [
            f"-Djavax.net.ssl.trustStore={truststore}",
            "-Djavax.net.ssl.trustStoreType=PKCS12",
            f"-Djavax.net.ssl.trustStorePassword={TRUSTSTORE_PASSWORD}",
        ]
        output = _run_ivy(jars, folder, java_options=options)
    return output


def _run_ivy(jars: list[Jar], folder: Path, java_options: list[str]) -> str:
    settings, module = folder / "settings.xml", folder / "ivy.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="central"/>'
        f"<caches defaultCacheDir={quoteattr(str(folder / 'ivy'))}/>"
        '<resolvers><ibiblio name="central" m2compatible="true"/></resolvers></ivysettings>',
        "utf-8",
    )
    dependencies = "".join(
        f'<dependency org="{jar.organisation}" name="{jar.name}" rev="{jar.revision}" transitive="false"/>'
        for jar in jars
    )
    module.write_text(
        '<ivy-module version="2.0"><info organisation="commitlog" module="jars"/>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>",
        "utf-8",
    )
    command = [str(find_java()), *java_options, "-jar", str(_pyspark_jar("ivy-*.jar"))]
    command += ["-settings", str(settings), "-ivy", str(module), "-types", "jar", "-warn"]
    command += ["-retrieve", str(folder / "[artifact]-[revision].[ext]")]
    return _run(command, FETCH_TIMEOUT_S, "fetching the Delta jars")


def _run(command: list[str], timeout_s: float, what: str) -> str:
    """Return the output of a program, whatever its exit code. Raises JarsUnavailable if it does not end."""
    try:
        run = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as error:
        raise JarsUnavailable(f"{what} took longer than {timeout_s:.0f} s") from error
    return run.stdout


def pyspark_jars(pattern: str = "*.jar") -> list[Path]:
    """Return jars of pyspark, one or more. Raises JarsUnavailable."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise JarsUnavailable("pyspark is not installed")
    jars = sorted((Path(found.origin).parent / "jars").glob(pattern))
    if not jars:
        raise JarsUnavailable(f"pyspark's jars folder has no {pattern}; reinstall pyspark")
    return jars


def _pyspark_jar(pattern: str) -> Path:
    return pyspark_jars(pattern)[-1]


def _certificate_bundle() -> Path | None:
    """Return the PEM file of certificate authorities that Python's own TLS trusts on this machine."""
    paths = ssl.get_default_verify_paths()
    for name in (os.environ.get("SSL_CERT_FILE"), paths.cafile, paths.openssl_cafile):
        if name and Path(name).is_file():
            return Path(name)
    return None


def _make_truststore(bundle: Path, target: Path) -> Path:
    """Write the certificates of a PEM file as a Java truststore, by Java's own classes through py4j."""
    # py4j has no types
    from py4j.java_gateway import (  # type: ignore[import-untyped]
        GatewayParameters,
        JavaGateway,
        launch_gateway,
    )

    jar = str(_pyspark_jar("py4j-*.jar"))
    port, token = launch_gateway(jarpath=jar, java_path=str(find_java()), die_on_exit=True, enable_auth=True)
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    try:
        java = gateway.jvm.java
        password = gateway.new_array(gateway.jvm.char, len(TRUSTSTORE_PASSWORD))
        for position, letter in enumerate(TRUSTSTORE_PASSWORD):
            password[position] = letter
        store = java.security.KeyStore.getInstance("PKCS12")
        store.load(None, password)
        source = java.io.FileInputStream(str(bundle))
        certificates = java.security.cert.CertificateFactory.getInstance("X.509").generateCertificates(source)
        source.close()
        for number, certificate in enumerate(certificates):
            store.setCertificateEntry(f"authority-{number}", certificate)
        sink = java.io.FileOutputStream(str(target))
        store.store(sink, password)
        sink.close()
    finally:
        gateway.shutdown()
    return target


def main() -> int:
    """Create the jars, and print their paths. Exit code 1 when they are not available."""
    parser = argparse.ArgumentParser(
        prog="python -m spark_jobs.session.jars", description="Download and build the jars."
    )
    parser.add_argument("--cache", type=Path, default=DEFAULT_JARS_FOLDER, help="Folder of the jars.")
    try:
        paths = ensure_jars(parser.parse_args().cache)
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write("".join(f"{path}\n" for path in paths))
    return 0


if __name__ == "__main__":
    sys.exit(main())
