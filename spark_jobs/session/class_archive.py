"""Spark's classes in the form that Java maps into memory: a session takes a third less time to start.

Java otherwise reads, checks and links some 15,000 classes of 277 jars at each start (class data sharing, JEP
350). make_class_archive.py writes the file. Java ignores an archive that does not fit its version, its class
path or its options: the file's name has a digest of the first two, so that a change of them asks for a new
file. It does not check that the file is whole.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from spark_jobs.session.java import CACHE_FOLDER, find_java_home
from spark_jobs.session.spark_home import spark_home

PATTERN = "classes-*.jsa"
QUIET = "-Xlog:cds*=off"  # Java writes to the standard output that an archive does not fit its options


def class_archive(cache: Path = CACHE_FOLDER) -> Path | None:
    """Return the path of the archive for the Java and the Spark of this process, whether it exists or not.
    None if another Spark than pyspark's is used. Raises JavaNotFound."""
    home = spark_home(cache)
    if home is None or os.environ.get("SPARK_HOME", str(home)) != str(home) or "SPARK_CONF_DIR" in os.environ:
        return None
    digest = hashlib.sha256(str(home).encode())
    for path in _parts(home):
        status = path.stat()
        digest.update(f"\0{path}\0{status.st_size}\0{status.st_mtime_ns}".encode())
    return cache / f"classes-{digest.hexdigest()[:12]}.jsa"


def java_options(cache: Path = CACHE_FOLDER) -> str:
    """Return the options of Java that use the archive; empty without one. Raises JavaNotFound."""
    archive = class_archive(cache)
    if archive is None or not archive.is_file():
        return ""
    return f' {QUIET} "-XX:SharedArchiveFile={archive}"'


def _parts(home: Path) -> Iterator[Path]:
    """Yield the files that decide whether an archive fits."""
    java = find_java_home().home
    for path in (java / "release", java / "lib" / "modules", java / "lib" / "server" / "classes.jsa"):
        if path.is_file():
            yield path
    yield from sorted((home / "jars").glob("*.jar"))
