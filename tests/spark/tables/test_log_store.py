"""The store of commits on a local file system: one version, one commit, however a writer was stopped."""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from spark_jobs.tables.checkpoints import write_checkpoint
from tests.spark.source.looks import await_true

TAKEN = "FileAlreadyExistsException"


class Store:
    """LinkLogStore. lines: a file, or a pipe, of the commit's lines."""

    def __init__(self, spark: SparkSession) -> None:
        self.jvm: Any = spark._jvm
        self.configuration = spark.sparkContext._jsc.hadoopConfiguration()
        self.store = self.jvm.commitlog.LinkLogStore(self.configuration)

    def write(self, commit: Path, lines: Path, *, overwrite: bool = False) -> None:
        reader = self.jvm.java.io.BufferedReader(self.jvm.java.io.FileReader(str(lines)))
        path = self.jvm.org.apache.hadoop.fs.Path(f"file:{commit}")
        try:
            self.store.write(path, reader.lines().iterator(), overwrite, self.configuration)
        finally:
            reader.close()


@pytest.fixture
def store(spark: SparkSession) -> Store:
    return Store(spark)


@pytest.fixture
def commit(tmp_path: Path) -> Path:
    """The name of one, in a folder that has a blank in its name and nothing in it."""
    folder = tmp_path / "delta log"
    folder.mkdir()
    return folder / "00000000000000000007.json"


def names(commit: Path) -> list[str]:
    return [path.name for path in commit.parent.iterdir()]


def test_a_commit_is_written_whole_and_never_over_another(store: Store, commit: Path, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.write_text('{"é": 1}\n{"b": 2}\n')
    theirs.write_text("theirs\n")
    store.write(commit, ours)
    with pytest.raises(Py4JJavaError, match=TAKEN):
        store.write(commit, theirs)
    assert commit.read_text() == ours.read_text()
    assert names(commit) == [commit.name]
    note = commit.with_name("_last_checkpoint")
    for lines in (ours, theirs):
        store.write(note, lines, overwrite=True)
        assert note.read_text() == lines.read_text()


def test_a_writer_stopped_in_mid_commit_finds_the_version_taken(
    store: Store, commit: Path, tmp_path: Path
) -> None:
    pipe, theirs = tmp_path / "pipe", tmp_path / "theirs"
    os.mkfifo(pipe)
    theirs.write_text("theirs\n")
    with ThreadPoolExecutor() as pool:
        stopped = pool.submit(store.write, commit, pipe)
        with pipe.open("w") as lines:
            lines.write("ours\n")
            lines.flush()
            await_true(lambda: len(names(commit)) == 1)  # its file, of another name
            assert not commit.exists()
            store.write(commit, theirs)
        with pytest.raises(Py4JJavaError, match=TAKEN):
            stopped.result()
    assert commit.read_text() == "theirs\n"
    assert names(commit) == [commit.name]


def test_one_of_the_writers_that_race_has_each_version(store: Store, commit: Path, tmp_path: Path) -> None:
    writers = [tmp_path / name for name in ("a", "b", "c")]
    for writer in writers:
        writer.write_text(f"{writer.name}\n")

    def won(lines: Path, name: Path) -> bool:
        try:
            store.write(name, lines)
        except Py4JJavaError as error:
            if TAKEN not in str(error):
                raise
            return False
        return True

    with ThreadPoolExecutor(len(writers)) as pool:
        for version in range(50):
            name = commit.with_name(f"{version:020}.json")
            first = list(pool.map(won, writers, [name] * len(writers)))
            assert [writers[place].read_text() for place, one in enumerate(first) if one] == [
                name.read_text()
            ]
    assert len(names(commit)) == 50


def test_delta_commits_by_it(spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    spark.range(1).write.format("delta").save(table)
    log: Any = spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, table)  # type: ignore[union-attr]
    used = log.store().getDelegate(log.logPath()).logStoreImpl()
    assert used.getClass().getName() == "commitlog.LinkLogStore"


@contextmanager
def synced(spark: SparkSession, recorded: Path) -> Iterator[set[str]]:
    """Yield a set that gets the places that Java has synced to disk meanwhile."""
    jvm: Any = spark._jvm
    recording = jvm.jdk.jfr.Recording()
    settings = jvm.java.util.HashMap()
    for name, value in (("enabled", "true"), ("threshold", "0 ms")):
        settings.put(f"jdk.FileForce#{name}", value)
    recording.setSettings(settings)
    places: set[str] = set()
    recording.start()
    try:
        yield places
    finally:
        recording.stop()
        file = jvm.java.io.File(str(recorded)).toPath()
        recording.dump(file)
        recording.close()
        events = jvm.jdk.jfr.consumer.RecordingFile.readAllEvents(file)
        places.update(events.get(number).getString("path") for number in range(events.size()))


def test_data_files_and_commits_of_spark_are_durable(spark: SparkSession, tmp_path: Path) -> None:
    """A record may be trimmed from its log once a table has it."""
    table = tmp_path / "the table"
    name, log = f"delta.`{table}`", table / "_delta_log"
    commits = (
        lambda: spark.range(9).write.format("delta").save(str(table)),
        lambda: spark.range(9, 20, 1, 1).write.format("delta").mode("append").save(str(table)),
        lambda: spark.sql(f"OPTIMIZE {name}").collect(),
    )
    for version, commit in enumerate(commits):
        with synced(spark, tmp_path / f"{version}.jfr") as places:
            commit()
        written = json.loads((log / f"{version:020}.json").read_text().splitlines()[-1])
        assert written.keys() <= {"add", "remove"}
        added = {
            str(table / action["add"]["path"])
            for action in map(json.loads, (log / f"{version:020}.json").read_text().splitlines())
            if "add" in action
        }
        assert added
        assert {*added, str(table), str(log)} <= places
        assert any(f"{version:020}.json" in place for place in places)  # under its temporary name


def test_a_checkpoint_is_durable_before_older_commits_are_removed(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    spark.range(9).write.format("delta").save(str(table))
    with synced(spark, tmp_path / "recorded.jfr") as places:
        write_checkpoint(spark, str(table))
    log = table / "_delta_log"
    assert {str(log / f"{0:020}.checkpoint.parquet"), str(log)} <= places


def test_all_files_of_a_checkpoint_in_the_format_v2_are_durable(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    frame = spark.range(9).write.format("delta").option("delta.checkpointPolicy", "v2")
    frame.save(str(table))
    with synced(spark, tmp_path / "recorded.jfr") as places:
        write_checkpoint(spark, str(table))
    log = table / "_delta_log"
    [whole] = log.glob("0*.checkpoint.*.*")
    parts = {str(path) for path in (log / "_sidecars").glob("*.parquet")}
    assert parts
    assert {str(whole), str(log / "_sidecars"), *parts} <= places
