"""`current` that the driver brings up to date: the newest record of each key, whatever the ranges."""

import json
import random
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from app.schemas import LogSchema
from app.tables.delta_log import DeltaLog
from spark_jobs.tables.local.commits import LocalTable, NeedsSpark, Rewrite
from spark_jobs.tables.local.data_files import write_file
from spark_jobs.tables.schemas import arrow_schema
from spark_jobs.tables.snapshot import read_plain
from spark_jobs.tables.table import ENTRIES, Table, settings_of_table
from spark_jobs.typed import local_current
from spark_jobs.typed.indexed_rows import IndexedRows
from spark_jobs.typed.layout import compatibility_groups
from spark_jobs.typed.local_current import Changes, LocalCurrent
from tests.spark.materialize.opened_job import commit_of_user
from tests.spark.user_restore import Content

AT = datetime(2026, 1, 1, tzinfo=UTC)


class Tables:
    """`entries`, `records` and `current` of a log whose records a test adds. keys: `key_columns`."""

    def __init__(self, folder: Path, keys: tuple[str, ...]) -> None:
        definition = "id BIGINT NOT NULL, part STRING NOT NULL, note STRING"
        [self.group] = compatibility_groups([LogSchema(1, 0, "json", definition, key_columns=keys)])
        self.folder = folder
        self.keys = self.group.keys
        self.next_index = 0
        self.log: list[tuple[bytes | None, dict[str, object] | None]] = []
        self.letters: list[dict[str, object]] = []
        for table in (ENTRIES, self.group.records(), self.group.current()):
            assert self.local(table).create(
                table.schema,
                cluster_by=table.cluster_by,
                comments=table.columns,
                properties=settings_of_table(table),
            )

    def local(self, table: Table) -> LocalTable:
        return LocalTable(str(self.folder / table.name), lambda path: None, keeps_files=True)

    def rows_at(self, table: Table, position: str) -> IndexedRows:
        return IndexedRows(None, str(self.folder / table.name), table, position)  # type: ignore[arg-type]

    def add(
        self, *added: tuple[bytes | None, dict[str, object] | None], letters: Collection[int] = ()
    ) -> None:
        """Add records: key and row, no row for a tombstone. letters: indexes of those that `records` gets by
        `move`."""
        first = self.next_index
        self.log += added
        self.next_index += len(added)
        entries = [
            {"index": index, "key": key, "value": None if row is None else b"x"}
            for index, (key, row) in enumerate(added, first)
        ]
        typed = [
            {"_index": index, "_term": 1, "_timestamp": AT, "_key": key, "_schema_version": 1, **row}
            for index, (key, row) in enumerate(added, first)
            if row is not None
        ]
        self.letters += [row for row in typed if row["_index"] in letters]
        self.append(ENTRIES, entries, first)
        self.append(self.group.records(), [row for row in typed if row["_index"] not in letters], first)

    def append(self, table: Table, rows: list[dict[str, object]], claim: int) -> None:
        if rows:
            self.local(table).append(
                pa.Table.from_pylist(rows, arrow_schema(table.schema)),
                statistics=table.statistics,
                application="test",
                claim=claim,
                note={},
            )

    def move(self) -> None:
        """Move the letters to `records` and `current`, as a replay does."""
        self.append(self.group.records(), self.letters, self.next_index)
        indexes = pa.array([row["_index"] for row in self.letters])
        rows = self.rows()
        moved = rows.filter(pc.is_in(rows["_index"], indexes)).group_by(self.keys).aggregate([])
        entries = self.rows_at(ENTRIES, "index").local_pieces(0, self.next_index, ["index", "key", "value"])
        removed = pa.concat_tables(part for _, part in entries)
        removed = removed.filter(pc.is_null(removed["value"]))
        self.driver().apply(rows.join(moved, self.keys, join_type="left semi"), removed, adds=True)

    def rows(self) -> pa.Table:
        """Return the rows of `records`."""
        names = self.group.records().schema.fieldNames()
        pieces = self.rows_at(self.group.records(), "_index").local_pieces(0, self.next_index, names)
        return pa.concat_tables(part for _, part in pieces)

    def driver(self) -> LocalCurrent:
        table = self.group.current()
        return LocalCurrent(table, self.keys, self.local(table), "test-current")

    def extend(self, first: int, until: int) -> None:
        records = self.rows_at(self.group.records(), "_index")
        self.driver().extend(records, self.rows_at(ENTRIES, "index"), first, until)

    def held(self) -> dict[object, int]:
        table = self.group.current()
        rows = read_plain(str(self.folder / table.name), table.schema, [*self.keys, "_index"])
        assert rows is not None
        found = {tuple(row[key] for key in self.keys): row["_index"] for row in rows.to_pylist()}
        assert len(found) == rows.num_rows
        return found  # type: ignore[return-value]

    def expected(self) -> dict[object, int]:
        found: dict[object, tuple[int, bytes | None]] = {}
        for index, (key, row) in enumerate(self.log):
            if row is not None:
                named = tuple(key if name == "_key" else row[name] for name in self.keys)
                if None not in named:
                    found[named] = (index, key)
            elif key is not None:
                found = {name: each for name, each in found.items() if each[1] != key}
        return {name: index for name, (index, _) in found.items()}


def tombstones(*removed: tuple[int, bytes]) -> pa.Table:
    index, key = zip(*removed, strict=True) if removed else ((), ())
    return pa.table({"index": pa.array(index, pa.int64()), "key": pa.array(key, pa.binary())})


@pytest.mark.parametrize("keys", [(), ("id", "part")])
@pytest.mark.parametrize("seed", range(3))
def test_any_ranges_give_the_newest_record_of_each_key(
    tmp_path: Path, keys: tuple[str, ...], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(local_current, "FILE_ROWS_MAX", 7)
    tables = Tables(tmp_path, keys)
    applied = 0
    for _ in range(10):
        added: list[tuple[bytes | None, dict[str, object] | None]] = []
        for _ in range(chance.randrange(1, 12)):
            number = chance.randrange(8)
            key = chance.choice([None, b"%d" % number, b"%d" % chance.randrange(8)])
            row = {"id": number, "part": chance.choice("ab"), "note": str(chance.random())}
            added.append((key, None if chance.random() < 0.3 else row))
        tables.add(*added)
        tables.extend(chance.randrange(applied + 1), tables.next_index)  # from an older start
        applied = tables.next_index
        assert tables.held() == tables.expected(), (seed, tables.log)
    tables.extend(0, applied)  # a driver that slept
    tables.extend(0, applied // 2)
    assert tables.held() == tables.expected()


@pytest.mark.parametrize("seed", range(3))
def test_letters_that_move_late_have_their_place_among_later_records_and_tombstones(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    tables = Tables(tmp_path, ("id",))
    added: list[tuple[bytes | None, dict[str, object] | None]] = []
    for number in range(40):
        row = {"id": chance.randrange(9), "part": "a", "note": str(number)}
        added.append((b"%d" % chance.randrange(5), None if chance.random() < 0.2 else row))
    tables.add(*added, letters=chance.sample(range(40), 16))
    tables.extend(0, 40)
    assert tables.held() != tables.expected()
    tables.move()
    assert tables.held() == tables.expected()


def test_a_tombstone_that_another_driver_has_applied_removes_a_letter_that_came_late(tmp_path: Path) -> None:
    tables = Tables(tmp_path, ())
    tables.add((b"1", {"id": 1, "part": "a"}), (b"2", {"id": 2, "part": "a"}))
    tables.extend(0, 1)
    tables.driver().apply(tables.rows(), tombstones((3, b"1"), (3, b"2")), adds=False)
    assert tables.held() == {}
    tables.driver().apply(tables.rows(), tombstones(), adds=False)
    assert tables.held() == {}


@pytest.mark.parametrize(
    "name", ["_removed_at", "_is_gone", "_at", "_new_index", "_index_max", "index", "a.b", "[x"]
)
def test_a_key_column_may_have_any_name(name: str) -> None:
    rows = pa.table(
        {
            "_index": pa.array([1, 2, 3, 5], pa.int64()),
            "_key": pa.array([b"a", b"b", b"a", b"c"], pa.binary()),
            name: ["x", "y", "x", "z"],
        }
    )
    removed = pa.table({"index": pa.array([4], pa.int64()), "key": pa.array([b"b"], pa.binary())})
    changes = Changes.of(rows, removed, [name])
    drops, newer = changes.in_file(rows.slice(0, 2))
    assert sorted(drops.to_pylist()) == [0, 1]
    assert changes.added(newer).select(rows.column_names).to_pylist() == rows.slice(2).to_pylist()


def test_few_new_rows_do_not_add_a_file_for_each_commit(tmp_path: Path) -> None:
    tables = Tables(tmp_path, ())
    for number in range(20):
        tables.add((b"%d" % number, {"id": number, "part": "a"}))
        tables.extend(number, number + 1)
    assert len(tables.held()) == 20
    snapshot = tables.driver()._local._log.snapshot()
    assert snapshot is not None
    assert len(snapshot.files) <= 5


def test_a_large_table_is_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = Tables(tmp_path, ())
    tables.add((b"1", {"id": 1, "part": "a"}))
    tables.extend(0, 1)
    monkeypatch.setattr(local_current, "TABLE_BYTES_MAX", 10)
    tables.add((b"1", {"id": 2, "part": "a"}))
    with pytest.raises(NeedsSpark, match="bytes"):
        tables.extend(1, 2)
    assert tables.held() == {(b"1",): 0}


@pytest.mark.parametrize("name", ["mine", "part.mine"])
def test_a_table_with_a_column_of_another_program_is_left_to_spark(tmp_path: Path, name: str) -> None:
    """As of a newer version of the schema, which a replay that began before it does not know. The driver
    would lose the values of that column in each file that it writes again."""
    tables = Tables(tmp_path, ())
    tables.add((b"1", {"id": 1, "part": "a"}))
    tables.extend(0, 1)
    table = tables.local(tables.group.current())
    metadata = Content(table.path, 0).metadata
    schema = json.loads(metadata["schemaString"])
    column = {"name": "mine", "type": "string", "nullable": True, "metadata": {}}
    if name == "mine":
        schema["fields"].append(column)
    else:
        held = next(each for each in schema["fields"] if each["name"] == "part")
        held["type"] = {"type": "struct", "fields": [column]}
    changed = {"metaData": {**metadata, "schemaString": json.dumps(schema)}}
    commit_of_user(table, "ADD COLUMNS", changed)
    tables.add((b"2", {"id": 2, "part": "a"}))
    with pytest.raises(NeedsSpark, match=f"another column {name.partition('.')[0]}"):
        tables.extend(1, 2)


def test_a_file_without_statistics_is_left_to_spark(tmp_path: Path) -> None:
    """Another program wrote it, or the checkpoints of the table have no statistics as JSON."""
    tables = Tables(tmp_path, ())
    tables.add((b"1", {"id": 1, "part": "a"}))
    table = tables.local(tables.group.current())
    columns = arrow_schema(tables.group.current().schema)
    file = write_file(table.path, pa.Table.from_pylist([{"_index": 0, "_key": b"0"}], columns), ())
    action = dict(file.action()["add"])
    del action["stats"]
    commit_of_user(table, "WRITE", {"add": action})
    with pytest.raises(NeedsSpark, match="specifies None"):
        tables.extend(0, 1)


def test_files_that_were_written_again_keep_their_place_in_the_order_of_indexes(tmp_path: Path) -> None:
    """As after OPTIMIZE: the log of the table then names the older rows last."""
    tables = Tables(tmp_path, ())
    for number in range(3):
        tables.add(*((b"%d" % key, {"id": number, "part": "a"}) for key in range(2)))
    oldest = pa.Table.from_pylist(
        [{"index": index, "key": b"%d" % index, "value": b"x"} for index in range(2)],
        arrow_schema(ENTRIES.schema),
    )
    folder = str(tmp_path / ENTRIES.name)
    assert LocalTable(folder, lambda path: None, keeps_files=True).rewrite(
        lambda snapshot: Rewrite([next(iter(snapshot.files))], [oldest], "Overwrite"),
        statistics=ENTRIES.statistics,
        claim=None,
        note={},
    )
    pieces = list(tables.rows_at(ENTRIES, "index").local_pieces(0, 6, ["index"]))
    assert [index for _, rows in pieces for index in rows["index"].to_pylist()] == [*range(6)]


def test_a_tombstone_of_no_row_is_claimed(tmp_path: Path) -> None:
    """Another driver that adds an older row of its key learns from it that the tombstone is applied."""
    tables = Tables(tmp_path, ())
    tables.add((b"1", {"id": 1, "part": "a"}), (b"9", None))
    for until in (1, 2):
        tables.extend(until - 1, until)
        snapshot = DeltaLog(str(tmp_path / "current")).snapshot()
        assert snapshot is not None
        assert snapshot.transactions == {"test-current": until}
