"""Reads of a log over HTTP: failures of one replica are survived, wrong answers and losses are reported."""

import socket
from dataclasses import replace

import pyarrow as pa
import pytest

from app.client.errors import Problem
from spark_jobs.errors import LogClash, LogTrimmed, RequestRefused, ShortRead, Unreachable
from spark_jobs.source.answers import InvalidAnswer, Node, decoding
from spark_jobs.source.log_reads import LogReads
from tests.spark.source.log_server import FakeLog, FakeReplica


def client_of(replicas: list[FakeReplica], give_up_s: float = 0.3) -> LogReads:
    return LogReads([replica.url for replica in replicas], "default", give_up_s=give_up_s)


def indexes(client: LogReads, first: int, until: int) -> list[int]:
    return [index for table in client.read(first, until) for index in table["index"].to_pylist()]


def test_reads_every_index_once_control_records_included(replicas: list[FakeReplica]) -> None:
    assert indexes(client_of(replicas), 0, 102) == [*range(102)]
    assert indexes(client_of(replicas), 50, 53) == [50, 51, 52]
    assert indexes(client_of(replicas), 5, 5) == []


def test_continues_at_another_replica_when_one_is_down(replicas: list[FakeReplica]) -> None:
    replicas[0].stop()
    client = client_of(replicas)
    assert indexes(client, 0, 102) == [*range(102)]
    assert client.tail(confirmed=True).next_index == 102


@pytest.mark.parametrize(
    ("document", "is_proof"), [({"code": "log-not-found"}, True), ({"code": "not-found"}, False), ({}, False)]
)
def test_only_a_node_proves_that_a_log_was_deleted(
    document: dict[str, str], is_proof: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy without a backend answers 404, too; a stream would begin such a log again."""

    def refuse(*_: object) -> None:
        raise Problem(404, document)

    monkeypatch.setattr(LogReads, "_json", refuse)
    assert LogReads(["http://127.0.0.1:9"], "default").is_gone("id") is is_proof


def test_an_arrow_stream_that_ends_within_a_batch_is_an_invalid_answer() -> None:
    """Another replica is asked after it. Arrow reports it as an error of the operating system."""
    sink = pa.BufferOutputStream()
    table = pa.table({"value": ["same"] * 4})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(InvalidAnswer), decoding("http://n1"):
        pa.ipc.open_stream(sink.getvalue()[:-13]).read_all()


def test_passes_over_a_replica_that_is_behind(replicas: list[FakeReplica]) -> None:
    replicas[0].committed_index = 10
    assert indexes(client_of(replicas), 0, 102) == [*range(102)]


def test_asks_again_when_an_answer_is_cut(replicas: list[FakeReplica]) -> None:
    replicas[0].cut_answers = 1
    assert indexes(client_of(replicas), 0, 102) == [*range(102)]


def test_asks_again_when_a_receipt_is_cut(replicas: list[FakeReplica], log: FakeLog) -> None:
    for replica in replicas:
        replica.receipts["lost"] = log.records[:3]
    replicas[0].cut_answers = 1
    node = client_of(replicas).nodes()[0].id
    assert client_of(replicas).receipt(node, "lost")["index"].to_pylist() == [0, 1, 2]


def test_a_short_read_is_never_passed_on(replicas: list[FakeReplica]) -> None:
    replicas[0].drop_record = 60
    assert indexes(client_of(replicas), 0, 102) == [*range(102)]
    replicas[1].drop_record = 60
    with pytest.raises(ShortRead, match="received index 61 instead of 60"):
        indexes(client_of(replicas), 0, 102)


def test_the_tail_is_known_without_a_leader_but_not_confirmed(replicas: list[FakeReplica]) -> None:
    for replica, committed_index in zip(replicas, (80, 90), strict=True):
        replica.has_leader = False
        replica.committed_index = committed_index
    tail = client_of(replicas).tail(confirmed=False)
    assert (tail.next_index, tail.confirmed) == (91, False)
    with pytest.raises(Unreachable, match=r"no replica could answer .* majority"):
        client_of(replicas).tail(confirmed=True)


def test_trimmed_names_the_begin_and_the_remedy(replicas: list[FakeReplica], log: FakeLog) -> None:
    log.begin_index = 20
    client = client_of(replicas)
    with pytest.raises(LogTrimmed, match=r"begins at index 20.*failOnDataLoss") as raised:
        indexes(client, 10, 30)
    assert raised.value.begin_index == 20
    assert client.place(19) is None
    place = client.place(20)
    assert place is not None
    assert (place.term, place.offset) == (1, 2_000)


def test_records_that_one_replica_has_trimmed_are_read_from_another(
    replicas: list[FakeReplica], log: FakeLog
) -> None:
    replicas[0].log = replace(log, begin_index=20)
    assert indexes(client_of(replicas), 10, 30) == list(range(10, 30))


def test_an_index_that_no_replica_has_is_not_waited_for_without_end(replicas: list[FakeReplica]) -> None:
    with pytest.raises(Unreachable, match="not-yet-replicated"):
        indexes(client_of(replicas), 100, 200)


def test_a_refusal_is_not_repeated(replicas: list[FakeReplica]) -> None:
    with pytest.raises(RequestRefused, match="404"):
        LogReads([replicas[0].url], "default").events(Node("n1", f"{replicas[0].url}/elsewhere", True), 0)


def test_a_server_that_hangs_up_is_unreachable_in_the_end() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(Unreachable, match="Is the cluster up"):
            LogReads([url], "default", give_up_s=0.2).log_id()


def test_finds_the_first_data_record(replicas: list[FakeReplica]) -> None:
    client = client_of(replicas)
    assert client.first_data_index(0, 102) == 1
    assert client.first_data_index(51, 52) is None
    assert client.first_data_index(51, 60) == 52
    assert client.first_data_index(60, 60) is None


def test_an_index_out_of_range_is_a_clash() -> None:
    error = LogClash("default", "it ends")
    assert "another cluster" in str(error)
