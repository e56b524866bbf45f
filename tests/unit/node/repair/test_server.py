"""Batches that a node serves to its peers: settled ones only, in frames that are equal after a round trip."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from app.log.contract import GroupConfig
from app.log.state import LogState
from app.log.terms import TERM_UNKNOWN
from app.node.network import wire
from app.node.network.repair_messages import (
    DigestAnswer,
    DigestRequest,
    FetchAnswer,
    FetchRequest,
    PeerCall,
    TermAnswer,
    TermRequest,
)
from app.node.repair import server
from app.node.repair.server import RepairServer
from app.node.replica.driver import LogDriver
from storage.errors import CorruptLog, DiskError, StorageError, as_damage
from storage.format.records import encode_control
from storage.log.commitlog import Commitlog, CommitlogConfig
from tests.support.memory_files import MemoryFiles
from tests.unit.node.repair.test_fetch import history
from tests.unit.raft.support import MemoryLog

BYTES_PER_S = 500_000
GROUP = GroupConfig(voters=("n1", "n2", "n3"), learners=("n4",))
BATCHES = history(10)  # two records each: indexes 0 to 19


@dataclass
class Replica:
    """As much of a driver as a peer's question touches."""

    log: Commitlog
    committed_index: int
    term: int = 7
    log_name: str = "log"
    knows_vote: bool = True
    sound: bool = True
    has_ended: bool = False
    is_truncating: bool = False
    group: GroupConfig = GROUP
    state: LogState = field(default_factory=LogState)


class Clock:
    ms = 0

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


class Node:
    """A server over a log in memory, of which `committed` is committed and `durable` on disk."""

    def __init__(self, committed: int, durable: int = 19) -> None:
        self.files = MemoryFiles()
        config = CommitlogConfig(tail_cache_bytes=0)
        log = Commitlog.open(self.files, "log", log_id=7, config=config)
        log.append([batch for batch in BATCHES if batch.last_index <= durable])
        ticket = log.start_sync()
        assert ticket is not None
        ticket.run()
        log.finish_sync(ticket)
        log.append([batch for batch in BATCHES if batch.last_index > durable])
        log.settle(committed)
        self.replica = Replica(log, committed)
        self.sent: list[PeerCall] = []
        self.damaged: list[str] = []
        self.clock = Clock()
        self.server = RepairServer(
            self.files,
            self.clock,
            lambda _peer, _log_id, message: self.sent.append(message),
            self.report,
            BYTES_PER_S,
        )

    def report(self, error: StorageError, found_by: str) -> bool:
        is_damage = isinstance(as_damage(error), CorruptLog)
        if is_damage:
            self.damaged.append(found_by)
        return is_damage

    def ask(self, request: PeerCall, *, offline: bool = False) -> Any:
        driver = None if offline else cast(LogDriver, self.replica)
        asyncio.run(self.server.answer("n2", 7, driver, request))
        return self.sent.pop() if self.sent else None

    def fetched(self, first: int, last: int) -> tuple[int, ...]:
        answer = self.ask(FetchRequest(1, first, last))
        return tuple(batch.base_index for batch in answer.batches)


@pytest.mark.rule("R-07")
def test_only_what_is_committed_and_durable_is_given() -> None:
    assert Node(committed=11).fetched(4, 19) == (4, 6, 8, 10)
    assert Node(committed=11, durable=7).fetched(4, 19) == (4, 6)
    assert Node(committed=11).fetched(12, 19) == ()
    assert Node(committed=-1).fetched(0, 19) == ()
    response = Node(committed=11).ask(FetchRequest(9, 12, 19))
    assert (response.id, response.begin_index, response.settled_index, response.busy) == (9, 0, 11, False)


def test_a_node_that_is_offline_gives_no_batch_and_no_term() -> None:
    node = Node(committed=19)
    assert node.ask(FetchRequest(1, 0, 3), offline=True) == FetchAnswer(1, -1, -1)
    assert node.ask(TermRequest(1), offline=True) is None
    candidates = ("n1", "n2", "n3", "n4")
    assert node.ask(TermRequest(1)) == TermAnswer(1, 7, node.clock.now_ms(), candidates)
    node.replica.knows_vote = False
    assert node.ask(TermRequest(1)) == TermAnswer(1, TERM_UNKNOWN, node.clock.now_ms(), candidates)
    assert node.ask(DigestRequest(1, 0, 3), offline=True).settled_index == -1


@pytest.mark.rule("R-01", "R-10")
def test_a_voter_whose_removal_may_not_be_committed_is_named_too() -> None:
    node = Node(committed=19)
    log = MemoryLog()
    for voters in (["n1", "n2", "n3", "n5"], ["n1", "n2", "n3"]):
        value = {"kind": "membership", "voters": voters, "learners": [], "nodes": {}}
        log.write([log.stamp(encode_control(value), 1, control=True)])
        node.replica.state.apply(log.batches[-1])
    assert node.ask(TermRequest(1)).candidates == ("n1", "n2", "n3", "n4", "n5")
    node.replica.state.committed(1)
    assert node.ask(TermRequest(1)).candidates == ("n1", "n2", "n3", "n4")


@pytest.mark.rule("R-07")
def test_a_replica_in_doubt_does_not_testify_that_a_range_was_never_committed() -> None:
    """Its disk may have been replaced: it may have acknowledged what it lacks."""
    node = Node(committed=11)
    node.replica.sound = False
    assert node.ask(FetchRequest(1, 12, 19)) == FetchAnswer(1, -1, -1)
    assert node.fetched(8, 19) == (8, 10)
    node.replica.sound = True
    assert node.ask(FetchRequest(1, 12, 19)) == FetchAnswer(1, 0, 11)


def test_more_than_its_share_is_put_off() -> None:
    node = Node(committed=19)
    given = 0
    while not (answer := node.ask(FetchRequest(1, 0, 19))).busy:
        given += sum(batch.size_bytes for batch in answer.batches)
        assert given <= BYTES_PER_S // 4
    assert answer.batches == ()
    assert given > 0
    node.clock.ms += 1_000
    assert not node.ask(FetchRequest(1, 0, 19)).busy


def test_digests_differ_exactly_where_the_batches_do() -> None:
    one, two = Node(committed=19), Node(committed=19)
    whole = one.ask(DigestRequest(1, 0, 19))
    assert whole == two.ask(DigestRequest(1, 0, 19))
    assert (whole.last_index, len(whole.digest)) == (19, 16)
    assert whole.digest != one.ask(DigestRequest(1, 0, 17)).digest
    assert one.ask(DigestRequest(1, 0, 19, deep=True)) == whole
    assert one.ask(DigestRequest(1, 0, 20)).digest == b""  # beyond what is settled


@pytest.mark.parametrize(
    "request_", [FetchRequest(1, 8, 11), DigestRequest(1, 0, 19), DigestRequest(1, 0, 19, deep=True)]
)
def test_damage_that_a_request_finds_is_reported_and_never_sent(request_: PeerCall) -> None:
    node = Node(committed=19)
    file = node.files.open("log/00000000000000000000.log")
    file.pwrite(b"noise", BATCHES[4].offset + 200)
    answer = node.ask(request_)
    assert len(node.damaged) == 1
    if isinstance(answer, FetchAnswer):
        assert answer.batches == ()
    else:
        assert answer.damaged


@pytest.mark.parametrize(
    "request_", [FetchRequest(1, 8, 11), DigestRequest(1, 0, 19), DigestRequest(1, 0, 19, deep=True)]
)
def test_a_disk_that_cannot_read_what_is_asked_for_is_damage(request_: PeerCall) -> None:
    node = Node(committed=19)

    def refuse_reads(operation: str, path: str) -> None:
        if operation == "read":
            raise DiskError(path, operation, "input/output error")

    node.files.refuse = refuse_reads
    answer = node.ask(request_)
    assert len(node.damaged) == 1
    assert answer.damaged if isinstance(answer, DigestAnswer) else answer.batches == ()


def test_records_that_were_cut_while_they_were_compared_are_no_damage() -> None:
    """An unclean election removed them: the log was closed, cut, and is open again, in other hands."""
    node = Node(committed=19)
    old = node.replica

    async def cut() -> DigestAnswer:
        asked = asyncio.ensure_future(
            node.server.answer("n2", 7, cast(LogDriver, old), DigestRequest(1, 0, 19, deep=True))
        )
        await asyncio.sleep(0)  # it reads the first batches in a thread
        old.has_ended = True
        old.log.close()
        log = Commitlog.open(node.files, "log", log_id=7, config=CommitlogConfig(tail_cache_bytes=0))
        log.truncate_after(9)
        log.close()
        await asked
        return cast(DigestAnswer, node.sent.pop())

    answer = asyncio.run(cut())
    assert (answer.digest, answer.damaged, node.damaged) == (b"", False, [])


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("state", ["has_ended", "is_truncating"])
def test_nothing_is_read_of_a_log_that_was_closed_or_cut_while_it_was_compared(
    state: str, deep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files may be cut at any moment from then on: a read of a mapped file would end the process."""
    monkeypatch.setattr(server, "_STEP_BYTES", 1)
    node = Node(committed=19)
    reads = list[str]()

    def note_reads(operation: str, path: str) -> None:
        if operation == "read":
            reads.append(path)
            assert len(reads) < 2 or not getattr(node.replica, state)
            setattr(node.replica, state, True)

    node.files.refuse = note_reads
    answer = node.ask(DigestRequest(1, 0, 19, deep=deep))
    assert (answer.digest, answer.damaged, node.damaged) == (b"", False, [])
    if state == "is_truncating":
        fetched = node.ask(FetchRequest(1, 0, 19))
        assert (fetched.batches, fetched.busy) == ((), True)


@pytest.mark.parametrize(
    "message",
    [
        FetchRequest(5, 1, 9),
        FetchAnswer(5, 0, 19, False, tuple(BATCHES[2:5])),
        FetchAnswer(5, -1, -1, True),
        TermRequest(2**53 - 1),
        TermAnswer(3, 8),
        TermAnswer(3, 8, 1_700_000_000_000),
        TermAnswer(3, TERM_UNKNOWN, 1_700_000_000_000, ("n1", "n2")),
        DigestRequest(4, 0, 19, True),
        DigestAnswer(4, 0, 19, 19, b"d" * 16, b"c" * 8, True),
    ],
)
def test_frames_come_back_as_they_were(message: Any) -> None:
    frame = b"".join(wire.encode(7, message))
    assert wire.decode(memoryview(frame)) == (7, message)
    with pytest.raises(wire.CorruptFrame):
        wire.decode(memoryview(frame[:-1]))
