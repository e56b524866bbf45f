"""The parts of the demo that decide: data, folder, hashes, and the proofs, which must be able to fail."""

import fcntl
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from app.client import CommitlogClient, Record
from app.demo import show as demo_show
from app.demo.flights import ContentHash, in_order_of_days, read_flights
from app.demo.folder import MARKER, FolderRefused, prepare
from app.demo.node_logs import ColumnsHash, NodeLog, count_events
from app.demo.proofs import (
    Proof,
    Sent,
    prove_entries,
    prove_epochs,
    prove_nodes,
    prove_typed,
    prove_watermarks,
)
from app.demo.report import proofs_table
from app.demo.sender import Acknowledgement, gap_ms
from app.demo.show import Show
from app.demo.story import read_note
from app.local.cluster import LocalNode
from storage.format.records import READ_SCHEMA
from tests.unit.cli.fake_service import Asked, Scripted, fake_service

SENT = Sent(records=100, content_hash="aa", last_index=101)
FOUND = {"rows": 100, "indexes": 100, "doubles": 0, "first": 1, "last": 101, "content_hash": "aa"}
NODE = NodeLog("n1", "leader", 101, 101, 102, "bb", "cc")
EPOCHS: list[dict[str, Any]] = [
    {
        "epoch": 1,
        "term": 1,
        "leader": "n1",
        "start_index": 0,
        "start_offset": 0,
        "end_index": 50,
        "end_offset": 9,
    },
    {
        "epoch": 2,
        "term": 2,
        "leader": "n2",
        "start_index": 51,
        "start_offset": 9,
        "end_index": None,
        "end_offset": None,
    },
]


def test_flights_are_records_keyed_by_flight() -> None:
    assert in_order_of_days(["2013,10,1,a", "2013,2,1,b", "2013,2,1,a"]) == [
        "2013,2,1,b",
        "2013,2,1,a",
        "2013,10,1,a",
    ]
    first, second = read_flights(2)
    assert (first.key, second.key) == ("UA1545", "UA1714")
    assert first.value is not None
    flight = json.loads(first.value)
    assert (flight["dep_delay"], flight["carrier"], flight["time_hour"]) == (2, "UA", "2013-01-01T10:00:00Z")


def test_the_folder_of_a_demo_is_wiped_and_any_other_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    assert prepare(folder) is False
    for name in ("n1", "tables"):
        (folder / name / "deeper").mkdir(parents=True)
    (folder / "notebook-1.png").write_text("x")
    (folder / "mine").write_text("x")
    assert prepare(folder) is True
    assert sorted(path.name for path in folder.iterdir()) == [MARKER, "mine"]
    (folder / MARKER).unlink()
    (folder / "precious").write_text("x")
    with pytest.raises(FolderRefused, match="no demo has created"):
        prepare(folder)
    assert (folder / "precious").exists()
    (tmp_path / "file").write_text("x")
    with pytest.raises(FolderRefused, match="not a folder"):
        prepare(tmp_path / "file")


def test_the_folder_of_a_demo_that_runs_is_left_alone(tmp_path: Path) -> None:
    prepare(tmp_path)
    (tmp_path / "cluster.toml").write_text("in use")
    with (tmp_path / "cluster.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(FolderRefused, match="a cluster runs in"):
            prepare(tmp_path)
    assert (tmp_path / "cluster.toml").read_text() == "in use"
    assert prepare(tmp_path)
    assert not (tmp_path / "cluster.toml").exists()


@pytest.mark.parametrize(
    "other",
    [
        [Record("b", "k"), Record("a", "k")],
        [Record("a", "k")],
        [Record("a", "k"), Record("b", "k"), Record("b", "k")],
        [Record("a", "kb"), Record("", "k")],
        [Record("a", "k"), Record("b", None)],
        [Record("a", "k"), Record(None, "k")],
    ],
)
def test_the_content_hash_differs_for_every_other_sequence(other: list[Record]) -> None:
    first, second, same = ContentHash(), ContentHash(), ContentHash()
    first.add_all([Record("a", "k"), Record("b", "k")])
    same.add(b"k", b"a")
    same.add(b"k", b"b")
    second.add_all(other)
    assert first.hex == same.hex
    assert first.hex != second.hex


def rows(*values: bytes | None, **columns: Any) -> pa.Table:
    record = {"term": 1, "offset": 0, "timestamp": 5, "key": None, "type": "data", **columns}
    records = [{**record, "index": index, "value": value} for index, value in enumerate(values)]
    return pa.Table.from_pylist(records, schema=READ_SCHEMA)


def columns_hash(*pages: pa.Table) -> str:
    digest = ColumnsHash()
    for page in pages:
        digest.add(page)
    return digest.hex


def test_a_nodes_hash_does_not_depend_on_the_pages() -> None:
    whole = rows(b"a", None, b"", b"bc", b"d")
    assert columns_hash(whole) == columns_hash(whole.slice(0, 2), whole.slice(2, 0), whole.slice(2))
    assert columns_hash(whole) == columns_hash(pa.concat_tables([whole.slice(0, 3), whole.slice(3)]))


@pytest.mark.parametrize(
    "other",
    [
        rows(b"a", b"c", None),
        rows(b"ab", b"", None),
        rows(b"a", b"b", b""),
        rows(b"a", b"b"),
        rows(b"a", b"b", None, key=b"k"),
        rows(b"a", b"b", None, term=2),
        rows(b"a", b"b", None, type="control"),
        rows(b"a", b"b", None, headers=[{"name": "h", "value": b"v"}]),
    ],
)
def test_a_nodes_hash_differs_for_every_other_log(other: pa.Table) -> None:
    assert columns_hash(rows(b"a", b"b", None)) != columns_hash(other)


def test_the_events_of_all_nodes_are_counted_page_by_page() -> None:
    def answer(asked: Asked) -> Scripted:
        next_seq = min(int(asked.query.get("from_seq", 0)) + 10, 25)
        return Scripted(200, {"events": [], "next_seq": next_seq, "has_more": next_seq < 25})

    with fake_service(answer) as service, CommitlogClient(service.url) as client:
        node = LocalNode("n1", int(service.url.rpartition(":")[2]), 0, Path())
        assert count_events(client, [node, node]) == 50


def test_a_missing_or_refused_typed_row_is_found() -> None:
    assert prove_typed(SENT, {"records": SENT.records, "dead_letters": 0}).holds
    assert not prove_typed(SENT, {"records": SENT.records - 1, "dead_letters": 0}).holds
    assert not prove_typed(SENT, {"records": SENT.records, "dead_letters": 1}).holds


def test_the_proof_of_entries_holds_only_for_each_record_exactly_once() -> None:
    assert all(proof.holds for proof in prove_entries(SENT, FOUND))
    for wrong in (
        {"rows": 101},
        {"indexes": 99},
        {"last": 100},
        {"content_hash": "ab"},
        {"rows": 99, "indexes": 99},
    ):
        assert not all(proof.holds for proof in prove_entries(SENT, {**FOUND, **wrong})), wrong
    empty = {"rows": 0, "indexes": 0, "doubles": 0, "first": None, "last": None, "content_hash": ""}
    assert not all(proof.holds for proof in prove_entries(SENT, empty))


def test_the_proof_of_the_nodes_holds_only_for_equal_logs() -> None:
    second, third = replace(NODE, node="n2"), replace(NODE, node="n3")
    assert all(proof.holds for proof in prove_nodes([NODE, second, third], "n1"))
    for wrong in (
        {"end_index": 99},
        {"committed_index": 99},
        {"records_hash": "b"},
        {"epoch_file_hash": "c"},
    ):
        differing = replace(third, **wrong)  # type: ignore[arg-type]  # a field of NodeLog each
        assert not all(proof.holds for proof in prove_nodes([NODE, second, differing], "n1")), wrong


def test_the_proof_of_the_epochs_holds_only_for_equal_tables_and_a_fail_over() -> None:
    nodes = ["n1", "n2"]
    files = [{**epoch, "node": node} for node in nodes for epoch in EPOCHS]
    assert all(proof.holds for proof in prove_epochs(EPOCHS, files, EPOCHS, nodes))
    assert not all(proof.holds for proof in prove_epochs(EPOCHS[:1], files, EPOCHS, nodes))
    assert not all(proof.holds for proof in prove_epochs(EPOCHS, files[:3], EPOCHS, nodes))
    only = EPOCHS[:1]
    one_file = [{**only[0], "node": node} for node in nodes]
    assert not all(proof.holds for proof in prove_epochs(only, one_file, only, nodes))


def test_the_proof_of_the_watermarks_holds_only_with_every_node_in_every_term() -> None:
    nodes = ["n1", "n2"]
    rows = [{"term": epoch["term"], "peer": node} for epoch in EPOCHS for node in nodes]
    assert prove_watermarks(rows, EPOCHS, nodes).holds
    for found in ([], rows[1:], rows[:-1]):
        assert not prove_watermarks(found, EPOCHS, nodes).holds


def test_the_gap_is_from_the_last_record_of_a_term_to_the_first_of_a_later_one() -> None:
    times = [(1_000, 1), (2_000, 1), (2_700, 2), (2_800, 2)]
    acknowledgements = [Acknowledgement(timestamp, term, "n", 0, False) for timestamp, term in times]
    assert gap_ms(acknowledgements, killed_term=1) == 700
    assert gap_ms(acknowledgements[:2], killed_term=1) is None


def test_a_wait_shows_what_is_done_at_present(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_show, "PLAIN_LINE_EACH_S", 0.0)
    note = tmp_path / "progress"
    shown = io.StringIO()
    with Show(Console(file=shown)).waiting("the notebook") as waiting:
        waiting.note(read_note(note))
        note.write_text("cell 3 of 9: One append")
        waiting.note(read_note(note))
    assert [line.strip() for line in shown.getvalue().splitlines()] == [
        "the notebook: 0 s, Spark starts",
        "the notebook: 0 s, cell 3 of 9: One append",
    ]


def test_a_wait_moves_on_a_terminal() -> None:
    shown = io.StringIO()
    with Show(Console(file=shown, force_terminal=True, width=100)).waiting("the notebook") as waiting:
        waiting.note("cell 3 of 9: One [append]")
    assert "the notebook: cell 3 of 9: One [append]" in shown.getvalue()


def test_a_table_in_a_pipe_has_one_line_for_each_row() -> None:
    shown = io.StringIO()
    claim = "entries: as many rows as records sent, and no index of the log is in it twice"
    Show(Console(file=shown, width=80)).table(proofs_table([Proof(claim, True, "336,776 = 336,776")]))
    lines = shown.getvalue().splitlines()
    assert any(f"{claim}   336,776 = 336,776" in line for line in lines)
    assert all(line == line.rstrip() for line in lines)
