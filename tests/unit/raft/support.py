"""A group of real cores over logs in memory, carried out as the driver does it, one message at a time."""

from collections import deque
from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any

from app.log.contract import (
    NO_INDEX,
    Acks,
    AppendFate,
    ChangeKind,
    CoreEvent,
    Durability,
    GroupConfig,
    PendingAppend,
    Ready,
    Reset,
    Role,
    TruncateAfter,
)
from app.log.core_start import CoreStart
from app.raft.config import RaftConfig
from app.raft.core import RaftCore
from app.raft.messages import PushRequest, RaftMessage
from storage.format.batch import FIRST_CHAIN, AppendMark, Batch, EncodedBody, stamp
from storage.format.records import RecordColumns, control_value, encode_body, encode_control
from storage.log.hard_state import HardState

LOG_ID = 7


@cache
def body_of(count: int, value: bytes) -> EncodedBody:
    records = RecordColumns()
    for _ in range(count):
        records.add(value)
    return encode_body(records)


class MemoryLog:
    """A ReplicaLog without a disk: what was written becomes durable by `sync`."""

    def __init__(self, batches: Sequence[Batch] = ()) -> None:
        self.batches: list[Batch] = list(batches)
        self.base_index = 0
        self.base_offset = 0
        self.base_term = 0
        self.durable_index = self.end_index
        self.truncations: list[TruncateAfter | Reset] = []

    @property
    def begin_index(self) -> int:
        return self.batches[0].base_index if self.batches else NO_INDEX

    @property
    def first_index(self) -> int:
        return self.batches[0].base_index if self.batches else self.base_index

    @property
    def end_index(self) -> int:
        return self.batches[-1].last_index if self.batches else NO_INDEX

    @property
    def next_index(self) -> int:
        return self.batches[-1].next_index if self.batches else self.base_index

    @property
    def end_offset(self) -> int:
        return self.batches[-1].next_offset if self.batches else self.base_offset

    @property
    def last_term(self) -> int:
        return self.batches[-1].term if self.batches else 0

    @property
    def last_position(self) -> tuple[int, int]:
        last = self.batches[-1] if self.batches else None
        return (self.base_term, self.base_index - 1) if last is None else (last.term, last.last_index)

    @property
    def last_chain(self) -> bytes:
        return self.batches[-1].header.chain if self.batches else FIRST_CHAIN

    @property
    def terms(self) -> list[int]:
        """The term of each record held."""
        return [batch.term for batch in self.batches for _ in range(batch.count)]

    def term_at(self, index: int) -> int:
        return 0 if index == NO_INDEX else self.batch_at(index).term

    def last_index_of_term_at_most(self, term: int) -> int:
        return max((batch.last_index for batch in self.batches if batch.term <= term), default=NO_INDEX)

    def floor_batch_end(self, index: int) -> int:
        return max((b.last_index for b in self.batches if b.last_index <= index), default=NO_INDEX)

    def batch_at(self, index: int) -> Batch:
        return next(batch for batch in self.batches if batch.base_index <= index <= batch.last_index)

    def read_batches(self, from_index: int, max_bytes: int, until_index: int | None = None) -> list[Batch]:
        found: list[Batch] = []
        for batch in self.batches:
            if batch.last_index < from_index or (until_index is not None and batch.base_index > until_index):
                continue
            if found and sum(each.size_bytes for each in found) + batch.size_bytes > max_bytes:
                break
            found.append(batch)
        return found

    def holds(self, batch: Batch) -> bool:
        return any(each == batch for each in self.batches)

    def write(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            assert batch.base_index == self.next_index
            assert batch.offset == self.end_offset
            self.batches.append(batch)

    def cut(self, change: TruncateAfter | Reset) -> None:
        self.truncations.append(change)
        if isinstance(change, Reset):
            self.batches = []
            self.base_index, self.base_offset = change.base_index, change.base_offset
            self.base_term = change.base_term
        else:
            assert change.index in (NO_INDEX, self.floor_batch_end(change.index))
            self.batches = [batch for batch in self.batches if batch.last_index <= change.index]
        self.durable_index = min(self.durable_index, self.end_index)

    def trim(self, begin_index: int) -> None:
        """Forget what lies before `begin_index`, as retention will."""
        self.batches = [batch for batch in self.batches if batch.base_index >= begin_index]

    def sync(self) -> None:
        self.durable_index = self.end_index

    def add(self, term: int, count: int = 1, value: bytes = b"v", control: bool = False) -> Batch:
        """Stamp a batch of equal records for the end, and write it."""
        batch = self.stamp(body_of(count, value), term, control=control)
        self.write([batch])
        return batch

    def stamp(
        self, body: EncodedBody, term: int, *, control: bool = False, marks: Sequence[AppendMark] = ()
    ) -> Batch:
        return stamp(
            body,
            log_id=LOG_ID,
            base_index=self.next_index,
            term=term,
            timestamp_ms=1_000,
            offset=self.end_offset,
            previous_chain=self.last_chain,
            control=control,
            marks=marks,
        )


def log_of(*terms: int, count: int = 1) -> MemoryLog:
    """A durable log with one batch of `count` records for each of the terms."""
    log = MemoryLog()
    for term in terms:
        log.add(term, count)
    log.sync()
    return log


class Member:
    """One core and its log. Syncs by itself unless `auto_sync` is off; `full`: its disk has no room."""

    def __init__(
        self, name: str, group: "Group", log: MemoryLog, hard_state: HardState, committed: int
    ) -> None:
        self.name = name
        self.group = group
        self.log = log
        self.auto_sync = True
        self.full = False
        self.save_ms = 0  # how long its disk takes for a term or a vote
        self.saved = [hard_state]  # every hard state that reached the disk
        self.answers: list[tuple[Any, AppendFate]] = []
        self.reads: list[tuple[Any, int | None]] = []
        self.events: list[CoreEvent] = []
        self.readies: list[Ready] = []
        self.core = self._new_core(committed)

    def _new_core(
        self, committed: int, sound: bool = True, knows_vote: bool = True, knows_group: bool = True
    ) -> RaftCore:
        return RaftCore(
            CoreStart(
                node_id=self.name,
                log_id=LOG_ID,
                group=self.group.config,
                durability=self.group.durability,
                hard_state=self.saved[-1],
                committed_index=committed,
                random=self.group.random,
            ),
            self.log,
            config=self.group.raft,
            sound=sound,
            knows_vote=knows_vote,
            knows_group=knows_group,
            preferred_leader=self.group.preferred_leader,
        )

    def restart(
        self,
        committed: int = NO_INDEX,
        *,
        sound: bool = True,
        knows_vote: bool = True,
        knows_group: bool = True,
    ) -> None:
        """A new incarnation with what is on disk."""
        keep = self.log.floor_batch_end(self.log.durable_index)
        self.log.batches = [batch for batch in self.log.batches if batch.last_index <= keep]
        self.log.durable_index = self.log.end_index
        self.core = self._new_core(committed, sound, knows_vote, knows_group)
        for group, index in memberships_of(self.log):
            self.core.configure(group, index, self.group.now_ms)
        self.core.start(self.group.now_ms)
        self.run()

    @property
    def leads(self) -> bool:
        return self.core.role is Role.LEADER

    def step(self, source: str, message: RaftMessage) -> None:
        self.core.step(source, message, self.group.now_ms)
        self.run()

    def tick(self) -> None:
        self.core.tick(self.group.now_ms)
        self.run()

    def append(
        self, count: int = 1, token: Any = None, acks: Acks = Acks.QUORUM, timeout_ms: int = 5_000
    ) -> Batch:
        """Append one batch, and let it be one client's."""
        batch = self.log.stamp(body_of(count, b"v"), self.core.term)
        pending = PendingAppend(
            batch.base_index,
            batch.last_index,
            acks,
            self.group.now_ms + timeout_ms,
            token or batch.base_index,
        )
        self.core.propose(batch, [pending], self.group.now_ms)
        self.run()
        return batch

    def sync(self) -> None:
        self.log.sync()
        self.core.synced(self.group.now_ms)
        self.run()

    def change(self, kind: ChangeKind, node_id: str) -> None:
        """Write the membership record of one change."""
        group = self.core.change(kind, node_id, self.group.now_ms)
        assert group is not None
        value = {"kind": "membership", "voters": group.voters, "learners": group.learners, "nodes": {}}
        control = self.log.stamp(encode_control(value), self.core.term, control=True)
        self.core.propose(control, (), self.group.now_ms)
        self.run()

    def _follow_membership(self) -> None:
        """The driver's step after each batch and truncation."""
        named = memberships_of(self.log)
        group, index = named[-1] if named else (self.group.config, NO_INDEX)
        self.core.configure(group, index, self.group.now_ms)

    def run(self) -> None:
        """Carry out what the core wants, as the driver does."""
        core, log = self.core, self.log
        while True:
            ready = core.ready()
            if ready is None:
                if core.wants_control is not None:
                    control = log.stamp(encode_control(core.wants_control), core.term, control=True)
                    core.propose(control, (), self.group.now_ms)
                    continue
                if self.auto_sync and log.durable_index != log.end_index:
                    log.sync()
                    core.synced(self.group.now_ms)
                    continue
                return
            self.readies.append(ready)
            if ready.hard_state is not None:
                self.group.wait(self.save_ms)
                self.saved.append(ready.hard_state)
            if ready.truncate is not None:
                log.cut(ready.truncate)
            stored = not (ready.batches and self.full)
            if stored:
                log.write(ready.batches)
            if stored and (ready.batches or ready.truncate):
                self._follow_membership()
            for target, message in ready.messages:
                self.group.send(self.name, target, message)
            self.answers += [(pending.token, fate) for pending, fate in ready.answers]
            self.reads += ready.reads
            self.events += ready.events
            if stored:
                core.advance(ready, self.group.now_ms)
            else:
                core.abandon(ready, self.group.now_ms)


def memberships_of(log: MemoryLog) -> list[tuple[GroupConfig, int]]:
    """The groups that the log's records name, oldest first, each with the index of its record."""
    named = []
    for batch in log.batches:
        if batch.is_control and "voters" in (value := control_value(batch)):
            group = GroupConfig(voters=tuple(value["voters"]), learners=tuple(value["learners"]))
            named.append((group, batch.base_index))
    return named


class Group:
    """Members and the messages between them, delivered only when a test does so."""

    def __init__(
        self,
        logs: dict[str, MemoryLog] | int = 3,
        *,
        learners: tuple[str, ...] = (),
        durability: Durability = Durability.FSYNC,
        raft: RaftConfig | None = None,
        hard_states: dict[str, HardState] | None = None,
        committed: dict[str, int] | None = None,
        seed: int = 1,
        preferred_leader: str | None = None,
    ) -> None:
        """logs: of each member, or how many members with empty ones. Terms default to those of the logs."""
        if isinstance(logs, int):
            logs = {f"n{number}": MemoryLog() for number in range(1, logs + 1)}
        self.config = GroupConfig(
            voters=tuple(name for name in logs if name not in learners), learners=learners
        )
        self.durability = durability
        self.raft = raft or RaftConfig()
        self.random = Random(seed)
        self.preferred_leader = preferred_leader
        self.now_ms = 10_000
        self.sent: deque[tuple[str, str, RaftMessage]] = deque()
        self.members: dict[str, Member] = {}
        top = max(log.last_term for log in logs.values())
        for name, log in logs.items():
            hard_state = (hard_states or {}).get(name, HardState(top))
            self.members[name] = Member(name, self, log, hard_state, (committed or {}).get(name, NO_INDEX))
        for member in self.members.values():
            member.core.start(self.now_ms)
            member.run()

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    def join(self, name: str) -> Member:
        """A new node whose configuration names the group that it will join, and itself."""
        member = Member(name, self, MemoryLog(), HardState(), NO_INDEX)
        self.members[name] = member
        member.core.start(self.now_ms)
        member.run()
        return member

    @property
    def leader(self) -> Member:
        """The one member that leads, in the newest term that any leads."""
        return max((m for m in self.members.values() if m.leads), key=lambda member: member.core.term)

    def send(self, source: str, target: str, message: RaftMessage) -> None:
        self.sent.append((source, target, message))

    def take(
        self, source: str | None = None, target: str | None = None, kind: Any = None
    ) -> list[RaftMessage]:
        """Take messages out of the network without delivering them."""
        taken = [each for each in self.sent if self._fits(each, source, target, kind)]
        self.sent = deque(each for each in self.sent if not self._fits(each, source, target, kind))
        return [message for _, _, message in taken]

    def pushes(self, target: str) -> list[PushRequest]:
        """Take the pushes on their way to `target`."""
        found = self.take(target=target, kind=PushRequest)
        return [message for message in found if isinstance(message, PushRequest)]

    def deliver(self, source: str | None = None, target: str | None = None, kind: Any = None) -> None:
        """Deliver what is on its way now; what that causes stays on its way."""
        fitting = [each for each in self.sent if self._fits(each, source, target, kind)]
        self.sent = deque(each for each in self.sent if not self._fits(each, source, target, kind))
        for sender, receiver, message in fitting:
            if receiver in self.members:
                self.members[receiver].step(sender, message)

    def settle(self, *names: str) -> None:
        """Deliver between the members named (default: all) until nothing is on its way; the rest stays."""
        inside = names or tuple(self.members)
        outside = []
        while self.sent:
            source, target, message = self.sent.popleft()
            if source in inside and target in inside:
                self.members[target].step(source, message)
            else:
                outside.append((source, target, message))
        self.sent.extend(outside)

    def pass_time(self, ms: int, *names: str) -> None:
        """Let time pass, ticking each 20 ms, with everything delivered between the members named."""
        inside = names or tuple(self.members)
        for _ in range(ms // 20):
            self.now_ms += 20
            for name in inside:
                self.members[name].tick()
            self.settle(*inside)

    def wait(self, ms: int) -> None:
        """Let time pass without anybody noticing."""
        self.now_ms += ms

    def elect(self, name: str, *names: str) -> Member:
        """Make `name` the leader by the votes of the members named (default: all)."""
        inside = names or tuple(self.members)
        member = self.members[name]
        for _ in range(50):
            if member.leads:
                return member
            self.wait(self.raft.election_timeout_ms[1])
            member.tick()
            self.settle(*inside)
        raise AssertionError(f"{name} was not elected")

    @staticmethod
    def _fits(each: tuple[str, str, RaftMessage], source: Any, target: Any, kind: Any) -> bool:
        return (
            source in (None, each[0])
            and target in (None, each[1])
            and (kind is None or isinstance(each[2], kind))
        )
