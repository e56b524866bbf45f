"""A damaged log in memory, with scripted peers, for the tests of its repair."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import msgspec

from app.log.events import JournalEvent
from app.log.state import LogState
from app.node.network.peer_calls import PeerCalls
from app.node.network.repair_messages import FetchAnswer, FetchRequest, PeerCall, TermAnswer, TermRequest
from app.node.repair.interfaces import DamagedCopy, FoundDamage
from app.node.repair.log_repair import LogRepair
from app.node.repair.marker import RepairMarker
from app.node.replica.driver import LogDriver
from storage.errors import CorruptFile, CorruptLog
from storage.format.batch import Batch, stamp
from storage.format.records import RecordColumns, encode_body, encode_control
from storage.log.checkpoint import CheckpointFile, SnapshotFile
from storage.log.commitlog import Commitlog, CommitlogConfig
from storage.log.hard_state import HardState, HardStateFile
from tests.support.memory_files import MemoryFiles
from tests.unit.node.repair.test_fetch import history
from tests.unit.node.repair.test_server import Clock
from tests.unit.raft.support import MemoryLog

BATCHES = history(40)
SIZES = CommitlogConfig(segment_max_bytes=4_000, mark_interval_bytes=1_000, tail_cache_bytes=0)
FOLDER = "data/logs/log"


def another_end(position: int, value: bytes, *, term: int = 1) -> list[Batch]:
    """The log of a leader that had other records from a batch on, each with this value."""
    batches = BATCHES[:position]
    while len(batches) < len(BATCHES):
        records = RecordColumns()
        records.add(value)
        records.add(value)
        body, before = encode_body(records), batches[-1]
        place = {"base_index": before.next_index, "offset": before.next_offset}
        batches.append(
            stamp(body, log_id=7, term=term, timestamp_ms=1, previous_chain=before.header.chain, **place)
        )
    return batches


class Peers:
    """Transport and other nodes in one: `answers` has the reply of a peer, None: no reply."""

    def __init__(self, answers: Callable[[str, PeerCall], PeerCall | None]) -> None:
        self.asked: list[tuple[str, PeerCall]] = []
        self.answers = answers
        self.calls = PeerCalls(self, Random(1))

    def send(self, target: str, log_id: int, message: Any) -> None:
        self.asked.append((target, message))
        answer = self.answers(target, message)
        if answer is not None:
            asyncio.get_running_loop().call_soon(self.calls.answered, target, log_id, answer)


class Host:
    """app.node.repair.log_repair.RepairHost: only opens the log, in place of its driver."""

    def __init__(self, files: MemoryFiles) -> None:
        self.files = files
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.log: Commitlog | None = None
        self.marked_when_opened = False
        self.sound: bool | None = None  # how the log was opened
        self.always_damaged = False

    def record(self, event: JournalEvent) -> None:
        self.events.append((event.kind, event.data))

    def open_log(self, *, sound: bool) -> Any:
        self.sound = sound
        if not self.files.exists(f"{FOLDER}/vote"):
            raise CorruptFile(f"{FOLDER}/vote", "missing")
        HardStateFile(self.files, f"{FOLDER}/vote").load()
        CheckpointFile(self.files, f"{FOLDER}/checkpoint").load()
        self.marked_when_opened = RepairMarker(self.files, "data", "log").exists
        if self.always_damaged:
            raise CorruptLog(FOLDER, 0, "a disk that rots at once")
        return Commitlog.open(self.files, FOLDER, log_id=7, config=SIZES)

    def serve(self, driver: LogDriver) -> None:
        self.log = driver  # type: ignore[assignment]  # what `open_log` gave

    def fail(self, what: str, error: BaseException) -> None:
        raise AssertionError(f"{what}: {error}")


def gives_all(_peer: str, message: PeerCall) -> PeerCall | None:
    """A healthy peer: two batches an answer."""
    if isinstance(message, TermRequest):
        return TermAnswer(message.id, 9)
    assert isinstance(message, FetchRequest)
    wanted = [b for b in BATCHES if message.first_index <= b.base_index <= message.last_index]
    return FetchAnswer(message.id, 0, 79, False, tuple(wanted[:2]))


class Scene:
    """A node's log of 40 batches, closed, with a vote."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        log = Commitlog.open(self.files, FOLDER, log_id=7, config=SIZES)
        log.append(BATCHES)
        log.close()
        HardStateFile(self.files, f"{FOLDER}/vote").save(HardState(4, "n2"))
        self.host = Host(self.files)
        self.votes = True
        self.state_type: type[LogState] = LogState
        self.is_configured = self.predates_folder = False
        self.learners: tuple[str, ...] = ()
        self.settled_voters: tuple[str, ...] | None = None  # None: those of the group

    def repair(
        self, peers: Peers, cause: CorruptLog | CorruptFile, voters: tuple[str, ...], sound: bool
    ) -> LogRepair:
        return LogRepair(
            self.host,
            DamagedCopy(
                files=self.files,
                folder=FOLDER,
                log_name="log",
                log_id=7,
                node_id="n1",
                voters=voters,
                learners=self.learners,
                settled_voters=voters if self.settled_voters is None else self.settled_voters,
                storage=SIZES,
                marker=RepairMarker(self.files, "data", "log"),
                votes=self.votes,
                state_type=self.state_type,
                is_configured=self.is_configured,
                predates_folder=lambda: self.predates_folder,
            ),
            FoundDamage(
                cause=cause,
                found_by="start",
                sound=sound,
            ),
            calls=peers.calls,
            clock=Clock(),
        )

    def run(
        self,
        peers: Peers,
        cause: CorruptLog | CorruptFile,
        voters: tuple[str, ...] = ("n1", "n2", "n3"),
        meanwhile: Callable[[LogRepair], Awaitable[None]] | None = None,
        sound: bool = True,
    ) -> LogRepair:
        async def bounded() -> LogRepair:
            async with asyncio.timeout(20):
                repair = self.repair(peers, cause, voters, sound)
                task = asyncio.create_task(repair.run())
                if meanwhile is not None:
                    await meanwhile(repair)
                await task
                return repair

        return asyncio.run(bounded())

    @property
    def segments(self) -> list[str]:
        return [name for name in self.files.list(FOLDER) if name.endswith(".log")]

    def damage(self, position: int, data: bytes = b"noise" * 40) -> CorruptLog:
        batch = BATCHES[position]
        for name in sorted(self.files.list(FOLDER), reverse=True):
            if name.endswith(".log") and int(name[:20]) <= batch.offset:
                self.files.open(f"{FOLDER}/{name}").pwrite(data, batch.offset - int(name[:20]))
                return CorruptLog(f"{FOLDER}/{name}", batch.offset, "noise")
        raise AssertionError("no such segment")


def saved_state(scene: Scene, *members: str) -> None:
    """Save a state of the log that names these members."""
    value = {"kind": "membership", "voters": members, "learners": [], "nodes": {}}
    log = MemoryLog()
    log.write([log.stamp(encode_control(value), 1, control=True)])
    state = scene.state_type()
    state.apply(log.batches[0])
    state.committed(0)
    saved = msgspec.msgpack.encode((log.last_chain, state.snapshot()))
    SnapshotFile(scene.files, f"{FOLDER}/state").save(saved)
