"""Delta logs without Spark: rows of a table, through checkpoints, clean-ups and a table created again."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.tables import delta_log
from app.tables.delta_log import (
    CHECKPOINT,
    LOG_FOLDER,
    DeltaLog,
    DeltaLogError,
    arrow_url,
    file_system_of,
    folders,
    table_folders,
)
from tests.support.delta_files import DeltaFiles


def test_a_table_is_followed_commit_by_commit(tmp_path: Path) -> None:
    log = DeltaLog(str(tmp_path / "entries"))
    assert log.snapshot() is None
    table = DeltaFiles(tmp_path / "entries")
    assert log.snapshot() is None
    table.create(owner="me")
    table.bring(0, 10)
    snapshot = log.snapshot()
    assert snapshot is not None
    assert (snapshot.version, snapshot.rows, snapshot.size_bytes) == (1, 10, 100)
    assert snapshot.properties == {"owner": "me"}
    assert log.snapshot() is snapshot
    table.bring(10, 15)
    table.commit({"remove": {"path": "part-1.parquet"}})
    snapshot = log.snapshot()
    assert snapshot is not None
    assert (snapshot.version, snapshot.rows) == (3, 5)
    assert [file.path for file in snapshot.files.values()] == [f"{tmp_path}/entries/part-2.parquet"]


def test_a_checkpoint_replaces_the_commits_before_it(tmp_path: Path) -> None:
    table = DeltaFiles(tmp_path / "entries")
    table.create(owner="me")
    for start in range(0, 50, 10):
        table.bring(start, start + 10, timestamp_ms=start)
    table.checkpoint()
    table.bring(50, 60)
    for version in range(5):
        (table.log / f"{version:020d}.json").unlink()
    log = DeltaLog(str(table.folder))
    snapshot = log.snapshot()
    assert snapshot is not None
    assert (snapshot.version, snapshot.rows, snapshot.properties) == (6, 60, {"owner": "me"})
    assert log.versions() == range(5, 7)
    assert log.commit(4) is None
    commit = log.commit(5)
    assert commit is not None
    assert (commit.timestamp_ms, commit.note, commit.largest("index")) == (
        40,
        {"first_index": 40, "until_index": 50},
        [49],
    )


def test_the_metadata_of_a_checkpoint_is_as_that_of_its_commit(tmp_path: Path) -> None:
    """Also with a pyarrow that gives maps as lists of pairs alone, before 20."""
    table = DeltaFiles(tmp_path / "entries")
    metadata = {
        "id": "1",
        "format": {"provider": "parquet", "options": {"compression": "snappy"}},
        "schemaString": "{}",
        "configuration": {"owner": "me"},
    }
    table.commit({"metaData": metadata})
    before = DeltaLog(str(table.folder)).snapshot()
    strings = pa.map_(pa.string(), pa.string())
    form = pa.struct([("provider", pa.string()), ("options", strings)])
    kinds = {"id": pa.string(), "name": pa.string(), "format": form, "schemaString": pa.string()}
    kind = pa.struct({**kinds, "configuration": strings})
    checkpoint = table.log / f"{table.version:020d}.checkpoint.parquet"
    pq.write_table(pa.table({"metaData": pa.array([None, metadata], kind)}), checkpoint)
    after = DeltaLog(str(table.folder)).snapshot()
    assert before is not None
    assert after is not None
    assert after.metadata == {**before.metadata, "name": None} == {**metadata, "name": None}


def test_files_that_were_removed_before_a_checkpoint_are_not_looked_at(tmp_path: Path) -> None:
    """A checkpoint names each file that was merged in a week: of a busy table, half a million."""
    table = DeltaFiles(tmp_path / "entries")
    table.create()
    for start in range(0, 50, 10):
        table.bring(start, start + 10)
    table.removed = ["old-1.parquet", "old-2.parquet", "part-2.parquet"]  # the last one came back
    table.checkpoint()
    applied: list[object] = []

    class Counted(DeltaLog):
        def _apply(self, action: Mapping[str, Any]) -> None:
            applied.append(action)
            super()._apply(action)

    snapshot = Counted(str(table.folder)).snapshot()
    assert snapshot is not None
    assert sorted(snapshot.files) == [f"part-{number}.parquet" for number in range(1, 6)]
    assert len(applied) == 6  # the properties too


class Compared(int):
    """A version that counts its comparisons."""

    count = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.count += 1
        return int.__eq__(self, other)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["0f6a.parquet", "0f6a.json", "0000000001.0000000002.parquet"])
def test_the_history_begins_at_a_checkpoint_of_another_format(tmp_path: Path, kind: str) -> None:
    """Only Spark reads it, and the commits before it are gone."""
    table = DeltaFiles(tmp_path / "entries")
    table.create()
    for start in range(0, 50, 10):
        table.bring(start, start + 10)
    (table.log / f"{3:020d}.checkpoint.{kind}").touch()
    for version in range(3):
        (table.log / f"{version:020d}.json").unlink()
    log = DeltaLog(str(table.folder))
    assert log.versions() == range(3, 6)
    assert log.first_left(1) == 3
    with pytest.raises(DeltaLogError, match="commits are missing"):
        log.snapshot()


def test_the_range_of_a_long_history_is_found_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that commits each second leaves 600 000 commits and 6 000 checkpoints in a week."""
    folder = tmp_path / "entries" / LOG_FOLDER
    folder.mkdir(parents=True)
    for version in range(1, 1_000):
        (folder / f"{version:020d}.json").touch()
    for version in range(10, 1_000, 10):
        (folder / f"{version:020d}{CHECKPOINT}").touch()
    number = delta_log._number
    monkeypatch.setattr(delta_log, "_number", lambda name: Compared(number(name)))
    monkeypatch.setattr(Compared, "count", 0)
    assert DeltaLog(str(folder.parent)).versions() == range(10, 1_000)
    assert Compared.count < 3_000


def test_a_table_made_again_is_seen(tmp_path: Path) -> None:
    table = DeltaFiles(tmp_path / "entries")
    table.create()
    table.bring(0, 10)
    log = DeltaLog(str(table.folder))
    assert log.snapshot() is not None
    shutil.rmtree(table.folder)
    assert log.snapshot() is None
    table = DeltaFiles(tmp_path / "entries")
    table.create(another="one")
    snapshot = log.snapshot()
    assert snapshot is not None
    assert (snapshot.version, snapshot.rows, snapshot.properties) == (0, 0, {"another": "one"})


def test_broken_logs_are_named(tmp_path: Path) -> None:
    table = DeltaFiles(tmp_path / "entries")
    table.create()
    table.bring(0, 10)
    table.bring(10, 20)
    (table.log / f"{1:020d}.json").unlink()
    with pytest.raises(DeltaLogError, match=r"entries: commits are missing .*the commit before it"):
        DeltaLog(str(table.folder)).snapshot()
    (table.log / f"{1:020d}.json").write_text("{broken")
    with pytest.raises(DeltaLogError, match="JSONDecodeError"):
        DeltaLog(str(table.folder)).snapshot()
    with pytest.raises(DeltaLogError, match="commit 1"):
        DeltaLog(str(table.folder)).commit(1)


def test_a_reader_gets_the_features_that_a_table_requires(tmp_path: Path) -> None:
    table = DeltaFiles(tmp_path / "entries")
    table.commit({"protocol": {"minReaderVersion": 3, "readerFeatures": ["deletionVectors"]}})
    stats = '{"numRecords": 9}'
    table.commit(
        {"add": {"path": "a b", "size": 1, "stats": stats, "deletionVector": {"cardinality": 2}}},
        {"add": {"path": "c%20d", "size": 1}},
    )
    snapshot = DeltaLog(f"file://{table.folder}").snapshot()
    assert snapshot is not None
    assert snapshot.reader_features == ("deletionVectors",)
    assert [(file.path.rpartition("/")[2], file.rows) for file in snapshot.files.values()] == [
        ("a b", 7),
        ("c d", None),
    ]
    assert snapshot.rows is None


def test_a_file_of_which_rows_are_deleted_stays_a_file_of_the_table(tmp_path: Path) -> None:
    table = DeltaFiles(tmp_path / "entries")
    table.commit(
        {"protocol": {"minReaderVersion": 3, "readerFeatures": ["deletionVectors", "columnMapping"]}},
        {"add": {"path": "a", "size": 1, "stats": '{"numRecords": 9}'}},
    )
    log = DeltaLog(str(table.folder))
    snapshot = log.snapshot()
    assert snapshot is not None
    assert snapshot.reader_features == ()  # named, and not in use
    vector = {"cardinality": 2}
    table.commit(
        {"add": {"path": "a", "size": 1, "stats": '{"numRecords": 9}', "deletionVector": vector}},
        {"remove": {"path": "a"}},  # after the file with its vector, as Delta writes them
    )
    snapshot = log.snapshot()
    assert snapshot is not None
    assert (snapshot.rows, snapshot.reader_features) == (7, ("deletionVectors",))


def test_tables_are_the_folders_with_a_log(tmp_path: Path) -> None:
    for name in ("events", "entries"):
        DeltaFiles(tmp_path / name)
    (tmp_path / "_checkpoints").mkdir()
    (tmp_path / "progress.json").write_text("{}")
    assert list(table_folders(str(tmp_path))) == ["entries", "events"]
    assert set(folders(str(tmp_path))) > {"entries", "events"}
    assert folders(str(tmp_path / "none")) == []
    assert list(table_folders(str(tmp_path / "none"))) == []


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_a_url_names_the_folder_that_spark_writes(tmp_path: Path, scheme: str) -> None:
    table = DeltaFiles(tmp_path / "a b%20#c?é" / "entries")
    table.create()
    table.bring(0, 3)
    root = f"{scheme}{table.folder.parent}"
    assert list(table_folders(root)) == ["entries"]
    snapshot = DeltaLog(f"{root}/entries").snapshot()
    assert snapshot is not None
    assert snapshot.rows == 3


def test_a_url_of_a_store_is_one_of_arrow() -> None:
    assert arrow_url("s3a://bucket/a b%20#c") == "s3://bucket/a%20b%2520%23c"
    assert arrow_url("gs://bucket") == "gs://bucket/"
    assert file_system_of("gs://anonymous@bucket/a b%20")[1] == "bucket/a b%20"
    for url in ("xyz://bucket/t", "dbfs:/t"):  # not a folder of this machine
        with pytest.raises(DeltaLogError, match=rf"of {url}: ArrowInvalid: Unrecognized filesystem .* {url}"):
            file_system_of(url)


def test_a_file_elsewhere_is_the_one_that_spark_names(tmp_path: Path) -> None:
    """As in a shallow clone of a table."""
    table = DeltaFiles(tmp_path / "clone")
    table.create()
    table.commit({"add": {"path": f"file:{tmp_path}/origin/part%201.parquet", "size": 1}})
    snapshot = DeltaLog(str(table.folder)).snapshot()
    assert snapshot is not None
    assert [file.path for file in snapshot.files.values()] == [f"file:{tmp_path}/origin/part 1.parquet"]
