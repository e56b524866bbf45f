"""A driver with its real log, state, journal and core, on a disk that works when a test lets it."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from app.errors import CommitlogError
from app.ha.config import HaConfig
from app.ha.messages import OUTGOING, Opened
from app.log.commands import Command, CommandResult
from app.log.contract import (
    AppendRequest,
    AppendResult,
    Durability,
    GroupConfig,
    Role,
)
from app.log.driver_interfaces import DriverConfig, SyncSource
from app.node.opening.open_replica import LogIdentity, open_replica
from app.node.opening.replica_modes import ClassicMode, RaftMode
from app.node.replica.driver import LogDriver
from app.node.services import NodeServices
from app.node.workers import InPlace
from app.raft.config import RaftConfig
from app.raft.messages import Heartbeat, HeartbeatAnswer, PushRequest, PushType, VoteAnswer
from storage.files import OsFileSystem
from storage.format.batch import AppendMark, Batch
from storage.format.records import RecordColumns, encode_body, encode_control
from storage.log.commitlog import CommitlogConfig
from tests.support.markers import removes_marker
from tests.unit.raft.support import LOG_ID, MemoryLog


@dataclass
class Limits:
    max_pending_requests: int = 100
    max_pending_bytes: int = 1_000_000
    max_idempotency_keys: int = 100_000
    max_producers: int = 10_000
    max_cursors: int = 1_000
    idempotency_ms: int = 86_400_000


@dataclass
class Seams:
    """Clock, scheduler, disk and transport in one: everything waits until a test lets it happen."""

    now: int = 1_000
    soon: deque[Callable[[], None]] = field(default_factory=deque)
    work: deque[Callable[[], None]] = field(default_factory=deque)
    sent: list[tuple[str, Any]] = field(default_factory=list)
    failures: list[tuple[str, BaseException]] = field(default_factory=list)
    disk_error: BaseException | None = None

    def now_ms(self) -> int:
        return 1_700_000_000_000 + self.now

    def monotonic_ms(self) -> int:
        return self.now

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def lane(self, _name: str) -> "Seams":
        return self

    def submit(self, work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]) -> None:
        def do() -> None:
            try:
                if self.disk_error is not None:
                    raise self.disk_error
                work()
            except Exception as error:
                then(None, error)
            else:
                then(None, None)

        self.work.append(do)

    def request_sync(self, source: SyncSource, then: Callable[[], None]) -> None:
        def do() -> None:
            ticket = source.start_sync()
            if ticket is not None:
                ticket.run()
                source.finish_sync(ticket)
            then()

        self.work.append(do)

    def send(self, target: str, log_id: int, message: Any) -> None:
        assert log_id == LOG_ID
        self.sent.append((target, message))

    def fail(self, what: str, error: BaseException) -> None:
        self.failures.append((what, error))

    def turn(self) -> None:
        """One turn of the loop, without the disk."""
        for _ in range(len(self.soon)):
            self.soon.popleft()()

    def run(self) -> None:
        """Turns and disk until nothing is left to do."""
        while self.soon or self.work:
            (self.soon or self.work).popleft()()


class Node:
    def __init__(self, folder: Path, *voters: str, **options: Any) -> None:
        self.folder = folder
        self.voters = voters or ("n1",)
        self.options = options
        self.limits = options.pop("limits", Limits())
        self.seams = Seams()
        self.driver = self.open()
        self.driver.start()
        self.seams.run()

    def open(self, *, sound: bool = True, sound_if_alone: bool = False) -> LogDriver:
        seams = self.seams
        services = NodeServices(
            node_id="n1",
            version="1.2.3",
            data_folder=str(self.folder),
            files=self.options.get("files", OsFileSystem()),
            storage=self.options.get("storage", CommitlogConfig()),
            limits=self.limits,
            clock=seams,
            disk=seams,
            transport=seams,
            scheduler=seams,
            random=Random(1),
            fail=seams.fail,
            driver=self.options.get("config") or DriverConfig(),
            reserve=self.options.get("reserve"),
            workers=self.options.get("workers") or InPlace(),
        )
        mode = self.options.get("mode") or RaftMode(
            configured=GroupConfig(voters=self.voters),
            config=RaftConfig(),
            sound=sound,
            sound_if_alone=sound_if_alone,
            begins=self.options.get("begins", True),
            predates_folder=self.options.get("predates_folder", False),
        )
        durability = self.options.get("durability", Durability.FSYNC)
        log = LogIdentity(name="default", log_id=LOG_ID, durability=durability)
        events = replace(removes_marker(services, "default"), damaged=self.options.get("damaged"))
        return open_replica(services, log, mode, events=events).driver

    def restart(self) -> None:
        """kill -9 and start again: what was not synced may be there or not, what was is."""
        before, self.seams = self.seams, Seams(now=self.seams.now + 1_000)
        before.work.clear()
        self.driver = self.open()
        self.driver.start()
        self.seams.run()

    def ask(self, *values: bytes | None, **options: Any) -> list[AppendResult | CommitlogError]:
        """Ask for one append; the list gets its answer."""
        records = RecordColumns()
        for value in values or (b"v",):
            records.add(value)
        answers: list[AppendResult | CommitlogError] = []
        options.setdefault("digest", b"d" * 16)
        self.driver.append(AppendRequest(records, **options), answers.append)
        return answers

    def append(self, *values: bytes | None, **options: Any) -> AppendResult | CommitlogError:
        answers = self.ask(*values, **options)
        self.seams.run()
        [answer] = answers
        return answer

    def command(self, command: Command) -> CommandResult | CommitlogError:
        answers: list[CommandResult | CommitlogError] = []
        self.driver.command(command, answers.append)
        self.seams.run()
        [answer] = answers
        return answer

    def tick(self, ms: int) -> None:
        self.seams.now += ms
        self.driver.tick()
        self.seams.run()

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event.data for event in self.driver.journal.read(0, 1_000)[0] if event.kind == kind]


def result(answer: AppendResult | CommitlogError) -> AppendResult:
    assert isinstance(answer, AppendResult), answer
    return answer


def code(answer: AppendResult | CommandResult | CommitlogError) -> str:
    assert isinstance(answer, CommitlogError), answer
    return answer.code


def follower_of_n2(folder: Path) -> tuple[Node, MemoryLog]:
    """n1 follows n2 in term 1, and a log as n2 would have it: an opening, then an append with the key k."""
    node = Node(folder, "n1", "n2", "n3")
    log = MemoryLog()
    log.write([log.stamp(encode_control({"kind": "term", "leader": "n2"}), 1, control=True)])
    records = RecordColumns()
    records.add(b"v")
    log.write([log.stamp(encode_body(records), 1, marks=(AppendMark(0, 1, "k", digest=b"d" * 16),))])
    node.driver.deliver("n2", Heartbeat(1, "n2", -1, 1))
    node.seams.run()
    return node, log


def push_to(node: Node, kind: PushType, term: int, leader: str, committed: int, *batches: Batch) -> None:
    incarnation = node.driver._core._handler._incarnation  # type: ignore[attr-defined]
    index = batches[0].base_index - 1
    index_term = node.driver.log.term_at(index)
    node.driver.deliver(
        leader,
        PushRequest(
            term, kind, leader, committed, 1, incarnation, index, index_term, 0, False, False, batches
        ),
    )


def leading_node(folder: Path, **options: Any) -> Node:
    """n1 of three, elected by n2; no peer acknowledges its log."""
    node = Node(folder, "n1", "n2", "n3", **options)
    node.tick(2_000)
    node.driver.deliver("n2", VoteAnswer(1, True, pre_vote=True))
    node.seams.run()
    node.driver.deliver("n2", VoteAnswer(1, True))
    node.seams.run()
    assert node.driver.role is Role.LEADER
    return node


def keep_lead(node: Node) -> None:
    node.driver.deliver("n2", HeartbeatAnswer(node.driver.term, 0))
    node.seams.run()


def classic_mode(master: str, **options: Any) -> ClassicMode:
    """Return the mode of a replica of n1 and n2."""
    return ClassicMode(
        replicas=("n1", "n2"),
        config=HaConfig(),
        master_id=master,
        master_address=f"{master}:1",
        sync_slaves=1,
        **options,
    )


def classic_slave(folder: Path) -> Node:
    """n1 in classic mode, connected to its master n2."""
    node = Node(folder, mode=classic_mode("n2"))
    node.tick(1)
    node.driver.deliver(f"{OUTGOING}1", Opened())
    node.seams.run()
    return node
