"""Build files that Spark can distribute: `python -m spark_jobs.package FOLDER [--conf FILE]`.

FOLDER/commitlog.zip     all code of this package, for `spark-submit --py-files`
FOLDER/spark.properties  settings of conf/spark.toml and of the jobs, for `spark-submit --properties-file`

A driver that starts Spark itself sends its executors the same archive (session/spark_session.py). The archive
does not contain the packages that this one imports (requirements.lock): executors have them installed, or
unpack them from `spark.archives`.
"""

import hashlib
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_OWN = (__package__ or "").split(".")  # ["spark_jobs"] in a checkout, ["commitlog", "spark"] as installed
PACKAGES = ("app", "storage", "spark_jobs") if len(_OWN) == 1 else (_OWN[0],)
ZIP_NAME = "commitlog.zip"
PROPERTIES_NAME = "spark.properties"
STAMP = (1980, 1, 1, 0, 0, 0)  # the same files make the same archive


def package_root() -> Path:
    """Return the folder, or the archive, that this package was imported from."""
    return Path(__file__).resolve().parents[len(_OWN)]


def make_zip(folder: Path) -> Path:
    """Return the package as FOLDER/commitlog-DIGEST.zip, written unless it exists, or the archive that it is
    now.

    The digest is of the content: executors and servers know archives by their names, and two versions may be
    in use at the same time.
    """
    root = package_root()
    if root.is_file():
        return root
    files = [
        path
        for name in PACKAGES
        for path in sorted((root / name).rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    ]
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    target = folder / f"commitlog-{digest.hexdigest()[:16]}.zip"
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.NamedTemporaryFile(dir=folder, delete=False) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for path in files:
            entry = zipfile.ZipInfo(path.relative_to(root).as_posix(), STAMP)
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    Path(file.name).replace(target)
    return target


def properties(settings: dict[str, str]) -> str:
    """Return Spark's settings as a Java properties file."""
    lines = [f"{name}={value.replace(chr(92), chr(92) * 2)}\n" for name, value in sorted(settings.items())]
    return "".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write both files, and print how to use them. Exit code 2 for an invalid configuration."""
    import click

    from app.errors import ConfigError
    from app.extras import imports_of_extra

    with imports_of_extra("spark", __name__):
        from spark_jobs.session.jars import JarsUnavailable, ensure_jars
        from spark_jobs.session.java import JavaNotFound, find_java
        from spark_jobs.session.settings import given_options, settings_of, spark_options
        from spark_jobs.session.spark_session import launch_settings, with_extra

    @click.command(
        epilog="\b\nExample:\n  python -m spark_jobs.package dist --conf conf/spark.toml --master spark://host:7077"
    )
    @click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
    @spark_options
    def options(**given: Any) -> SimpleNamespace:
        """Build the files that spark-submit needs in FOLDER, and print its command line."""
        return SimpleNamespace(**given)

    given: SimpleNamespace = given_options(options, "spark_jobs.package", arguments)
    try:
        settings = settings_of(given)
        session = settings.session
        ensure_jars(session.jars)
        launch = launch_settings(
            session.jars.resolve(), is_local=session.is_local, driver_memory=session.driver_memory
        )
        java_home = find_java().parent.parent
    except (ConfigError, JarsUnavailable, JavaNotFound) as error:
        sys.stderr.write(f"{error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    own = {"spark.master": session.master, "spark.pyspark.python": sys.executable}
    archive = given.folder.resolve() / ZIP_NAME
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        make_zip(Path(folder)).replace(archive)
    written = given.folder.resolve() / PROPERTIES_NAME
    written.write_text(properties(with_extra({**launch, **own, **session.spark_settings()}, settings.conf)))
    sys.stdout.write(
        f"JAVA_HOME={java_home} spark-submit --properties-file {written} --py-files {archive} "
        f"{Path(__file__).resolve().with_name('run.py')} --endpoint URLS --tables LOCATION\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
