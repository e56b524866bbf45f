"""The archive of the classes that Spark loads (class data sharing): where it stands, and how Java is told.

A job loads 20 000 classes of Spark and Delta before its first rows are in a table: a quarter of the
processor's time until then. Java can keep them in a file, as it has them in memory. `make archive` makes the
file (app/cli/class_archive.py); each `local[N]` Spark of ours that starts later on this machine uses it if it
is there. It is named after Java and the jars, so that none is ever offered that does not fit.
"""

import hashlib
from pathlib import Path

from spark_jobs.jars import DEFAULT_JARS_FOLDER, jar_paths, pyspark_jars
from spark_jobs.java import find_java

QUIET = "-Xlog:cds*=off"  # Java tells of an archive that it does not take on the standard output
PATTERN = "classes-*.jsa"


def archive_path(jars: Path = DEFAULT_JARS_FOLDER) -> Path:
    """Where the archive stands for the Java and the jars of now, whether it is there or not."""
    java = find_java().resolve()
    digest = hashlib.sha256(f"{java} {java.stat().st_mtime_ns}".encode())
    for path in [*jar_paths(jars), *pyspark_jars()]:
        digest.update(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}\n".encode())
    return jars / PATTERN.replace("*", digest.hexdigest()[:16])


def archive_options(jars: Path) -> str:
    """Java's options to use the archive, none where it is not."""
    path = archive_path(jars)
    return f" -XX:SharedArchiveFile={path} {QUIET}" if path.is_file() else ""
