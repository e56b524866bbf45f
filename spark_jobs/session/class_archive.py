"""Spark's classes in the form that Java maps into memory: a session starts with half of the processor time.

Java otherwise reads, checks and links some 15,000 classes of 277 jars at each start (class data sharing, JEP
350). `python -m spark_jobs.session.class_archive` runs a few statements of Spark in a session, and lets Java
write the classes at its end. Java ignores an archive that does not fit its version, its class path or its
options: the file's name has a digest of the first two, so that a change of them asks for a new file.
"""

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from spark_jobs.session.jars import DEFAULT_JARS_FOLDER, ensure_jars
from spark_jobs.session.java import CACHE_FOLDER, find_java_home
from spark_jobs.session.spark_home import spark_home

END_TIMEOUT_S = 300.0  # Java writes some 200 MB
QUIET = "-Xlog:disable -Xlog:all=error:stderr"  # it warns of each class that it leaves out
_PATTERN = "classes-*.jsa"


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
    """Return the option of Java that uses the archive; empty without one. Raises JavaNotFound."""
    archive = class_archive(cache)
    return f" -XX:SharedArchiveFile={archive}" if archive is not None and archive.is_file() else ""


def make_class_archive(cache: Path = CACHE_FOLDER) -> Path | None:
    """Return the path of the archive, made unless it exists; None if another Spark than pyspark's is used.

    The process must not have a session; it has none afterwards. Raises JarsUnavailable, JavaNotFound, and
    RuntimeError if Java writes no archive.
    """
    from spark_jobs.session.spark_session import DRIVER_JAVA, build_session  # it imports this module

    archive = class_archive(cache)
    if archive is None or archive.is_file():
        return archive
    ensure_jars()
    with tempfile.TemporaryDirectory(dir=cache, prefix=".classes-") as folder:
        written = Path(folder) / "classes.jsa"
        options = f"-XX:ArchiveClassesAtExit={written} -XX:TieredStopAtLevel=1 {QUIET}"
        session = build_session(
            "class archive", jars_folder=DEFAULT_JARS_FOLDER, extra={DRIVER_JAVA: options}
        )
        _use(session, f"{folder}/table")
        _end(session)
        if not written.is_file():
            raise RuntimeError(f"{find_java_home().home} wrote no archive of Spark's classes")
        for old in cache.glob(_PATTERN):
            old.unlink(missing_ok=True)
        return written.replace(archive)


def _parts(home: Path) -> Iterator[Path]:
    """Yield the files that decide whether an archive fits."""
    java = find_java_home().home
    for path in (java / "release", java / "lib" / "modules", java / "lib" / "server" / "classes.jsa"):
        if path.is_file():
            yield path
    yield from sorted((home / "jars").glob("*.jar"))


def _use(session: SparkSession, table: str) -> None:
    """Let Java load the classes of a job: writes, reads, a change of rows, and a stream."""
    session.sql(f"CREATE TABLE delta.`{table}` (id INT, word STRING) USING delta")
    for number in range(2):
        session.createDataFrame([(number, "one"), (number + 1, "two")], "id INT, word STRING").write.format(
            "delta"
        ).mode("append").save(table)
    session.sql(
        f"MERGE INTO delta.`{table}` AS old USING (SELECT 1 AS id, 'three' AS word) AS new "
        "ON old.id = new.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    session.sql(f"SELECT word, count(*) FROM delta.`{table}` GROUP BY word ORDER BY word").collect()
    stream = session.readStream.format("delta").load(table).writeStream.format("delta")
    started = stream.option("checkpointLocation", f"{table}-checkpoint").trigger(availableNow=True)
    started.start(f"{table}-copy").awaitTermination()


def _end(session: SparkSession) -> None:
    """End the session and wait for its Java."""
    gateway = session.sparkContext._gateway
    assert gateway is not None
    session.stop()
    java = gateway.proc
    gateway.shutdown()
    java.stdin.close()
    java.wait(END_TIMEOUT_S)


def main() -> int:
    """Make the archive, and print its path. Exit code 1 when that fails."""
    try:
        archive = make_class_archive()
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{archive or 'not for the Spark of SPARK_HOME'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
