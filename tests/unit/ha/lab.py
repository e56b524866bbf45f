"""One core over a real log in memory, carried out as the driver does it; frames are handed over by hand."""

from collections.abc import Sequence
from random import Random
from typing import Any

from app.ha.auto_switch.core import AutoSwitchCore
from app.ha.classic.master import ClassicMasterCore
from app.ha.classic.slave import ClassicSlaveCore
from app.ha.config import HaConfig
from app.ha.frames import History
from app.ha.messages import INCOMING, Closed, Connect, Opened
from app.ha.roles import MANAGER, KnownReplica, Lease, MasterRole, SlaveRole
from app.log.contract import (
    NO_INDEX,
    Acks,
    AppendFate,
    CoreEvent,
    Durability,
    GroupConfig,
    PendingAppend,
    Reset,
    TruncateAfter,
)
from app.log.core_start import CoreStart
from storage.format.batch import Batch, stamp
from storage.format.records import RecordColumns, encode_body, encode_control
from storage.log.commitlog import Commitlog, CommitlogConfig
from storage.log.hard_state import HardState
from tests.support.memory_files import MemoryFiles
from tests.unit.storage.support import sync_log

LOG_ID = 7
NAMES = ("n1", "n2", "n3")
REPLICAS = tuple(KnownReplica(number, name, f"{name}:10911") for number, name in enumerate(NAMES, 1))
CONFIG = HaConfig()

AnyCore = AutoSwitchCore | ClassicMasterCore | ClassicSlaveCore


def new_log(segment_max_bytes: int = 1 << 20) -> Commitlog:
    config = CommitlogConfig(segment_max_bytes=segment_max_bytes)
    return Commitlog.open(MemoryFiles(), "log", log_id=LOG_ID, config=config)


def next_batch(
    log: Commitlog, epoch: int, *values: bytes, opened_by: str | None = None, log_id: int = LOG_ID
) -> Batch:
    """The batch that a master of `epoch` would stamp for the log's end."""
    if opened_by is None:
        records = RecordColumns()
        for value in values:
            records.add(value)
        body = encode_body(records)
    else:
        body = encode_control({"kind": "term", "leader": opened_by})
    return stamp(
        body,
        log_id=log_id,
        base_index=log.next_index,
        term=epoch,
        timestamp_ms=1_700_000_000_000 + log.next_index,
        offset=log.end_offset,
        previous_chain=log.last_chain,
        control=opened_by is not None,
    )


def write(log: Commitlog, epoch: int, *values: bytes, opened_by: str | None = None) -> Batch:
    """Append a batch; durable on return."""
    batch = next_batch(log, epoch, *values, opened_by=opened_by)
    log.append([batch])
    sync_log(log)
    return batch


def copy(log: Commitlog, until: Batch | None = None) -> Commitlog:
    """Another replica's log with the same bytes, up to and with a batch."""
    other = new_log()
    index = 0
    while index <= (log.end_index if until is None else until.last_index):
        batch = log.batch_at(index)
        other.append([batch])
        index = batch.next_index
    sync_log(other)
    return other


def history_of(log: Commitlog) -> History:
    """Bytes that a slave with this log sends when it connects."""
    return History(log.end_offset, log.next_index, log.last_term, log.last_chain)


class Lab:
    """Output of the core since the last call: messages, answers, notifications; the time is `now_ms`."""

    core: AnyCore

    def __init__(self, log: Commitlog, durability: Durability = Durability.FSYNC) -> None:
        self.log = log
        self.durability = durability
        self.now_ms = 1_000
        self.sent: list[tuple[str, Any]] = []
        self.answers: list[tuple[PendingAppend, AppendFate]] = []
        self.reads: list[tuple[Any, int | None]] = []
        self.events: list[CoreEvent] = []
        self.truncations: list[TruncateAfter | Reset] = []
        self.saved: list[HardState] = []
        self.auto_sync = True
        self.full = False

    # --- what the driver does

    def deliver(self, source: str, message: Any) -> None:
        self.core.step(source, message, self.now_ms)
        self.carry_out()

    def tick(self, after_ms: int = 0) -> None:
        self.now_ms += after_ms
        self.core.tick(self.now_ms)
        self.carry_out()

    def carry_out(self) -> None:
        while True:
            ready = self.core.ready()
            if ready is None:
                if self.core.wants_control is None:
                    break
                body = encode_control(self.core.wants_control)
                self._propose(body, control=True, appends=())
                continue
            if ready.hard_state is not None:
                self.saved.append(ready.hard_state)
            if isinstance(ready.truncate, Reset):
                self.log.reset(ready.truncate.base_index, ready.truncate.base_offset)
            elif ready.truncate is not None:
                self.log.truncate_after(ready.truncate.index)
            if ready.truncate is not None:
                self.truncations.append(ready.truncate)
            if not (self.full and ready.batches):
                self.log.append(ready.batches)
            self.sent += ready.messages
            self.answers += ready.answers
            self.reads += ready.reads
            self.events += ready.events
            if self.full and ready.batches:
                self.core.abandon(ready, self.now_ms)
            else:
                self.core.advance(ready, self.now_ms)
        if self.auto_sync and self.log.durable_index < self.log.end_index:
            self.sync()
        self.log.settle(self.core.committed_index)

    def sync(self) -> None:
        sync_log(self.log)
        self.core.synced(self.now_ms)
        self.carry_out()

    # --- what clients do

    def append(self, *values: bytes, acks: Acks = Acks.QUORUM, timeout_ms: int = 1_000) -> PendingAppend:
        records = RecordColumns()
        for value in values:
            records.add(value)
        first = self.log.next_index
        pending = PendingAppend(first, first + len(values) - 1, acks, self.now_ms + timeout_ms, values)
        self._propose(encode_body(records), control=False, appends=[pending])
        self.carry_out()
        return pending

    def _propose(self, body: Any, *, control: bool, appends: Sequence[PendingAppend]) -> None:
        log = self.log
        batch = stamp(
            body,
            log_id=LOG_ID,
            base_index=log.next_index,
            term=self.core.term,
            timestamp_ms=1_700_000_000_000,
            offset=log.end_offset,
            previous_chain=log.last_chain,
            control=control,
        )
        self.core.propose(batch, appends, self.now_ms)

    # --- what a test asks

    def take(self) -> list[tuple[str, Any]]:
        """Messages since the last call."""
        sent, self.sent = self.sent, []
        return sent

    def frames(self, key: str, kind: type | tuple[type, ...] = object) -> list[Any]:
        """Messages of one kind to one connection since the last call."""
        return [message for target, message in self.take() if target == key and isinstance(message, kind)]

    def fates(self) -> list[tuple[int, str]]:
        """(last index, fate) of the appends answered since the last call."""
        answers, self.answers = self.answers, []
        return [(pending.last_index, fate.value) for pending, fate in answers]

    def reported(self, kind: str) -> list[dict[str, Any]]:
        return [event.data for event in self.events if event.kind == kind]

    def dialled(self) -> str:
        """The key of the connection that the core has asked for last; it is opened."""
        key = next(target for target, message in reversed(self.take()) if isinstance(message, Connect))
        self.deliver(key, Opened())
        return key

    def connected(
        self, number: int = 1, place: int = 0, history: History | None = None, node: str | None = None
    ) -> str:
        """A slave has connected; return its key."""
        key = f"{INCOMING}{number}"
        self.deliver(key, Opened(place, history, node))
        return key


def check_last_heard(master: Lab, key: str, *, began_ms: int, heard_ms: int) -> None:
    """Check the times at which a master heard its slaves: none for n2, which is connected, until its
    connection `key` ends; then heard_ms. n3 was never heard."""
    master.tick(600)

    def heard() -> dict[str, int | None]:
        return {peer.id: peer.heard_ms for peer in master.core.status().peers}

    assert heard()["n2"] is None
    master.deliver(key, Closed("gone"))
    never = heard()["n3"]
    assert heard()["n2"] == heard_ms > began_ms
    assert never is not None
    assert never <= began_ms


class Replicated(Lab):
    """A replica in controller mode."""

    core: AutoSwitchCore

    def __init__(
        self,
        node: str = "n1",
        log: Commitlog | None = None,
        *,
        committed_index: int = NO_INDEX,
        hard_state: HardState | None = None,
        min_in_sync: int = 1,
        config: HaConfig = CONFIG,
        durability: Durability = Durability.FSYNC,
        auto_sync: bool = True,
    ) -> None:
        """auto_sync: whatever is written is durable at once, else by `sync`."""
        super().__init__(new_log() if log is None else log, durability)
        self.auto_sync = auto_sync
        self.log.settle(committed_index)
        self.core = AutoSwitchCore(
            CoreStart(
                node_id=node,
                log_id=LOG_ID,
                group=GroupConfig(voters=NAMES),
                durability=durability,
                hard_state=hard_state or HardState(self.log.last_term),
                committed_index=committed_index,
                random=Random(1),
            ),
            self.log,
            address=f"{node}:10911",
            config=config,
            min_in_sync_replicas=min_in_sync,
        )
        self.core.start(self.now_ms)
        self.carry_out()

    @property
    def wanted_set(self) -> tuple[int, ...] | None:
        """The set that the master asks the controllers for; None if it wants the present one."""
        request = self.core.set_request
        return None if request is None else request.members

    def lead(
        self,
        epoch: int = 1,
        members: tuple[int, ...] = (1,),
        set_epoch: int = 1,
        *,
        lease_ms: int | None = 1_000_000,
        replicas: tuple[KnownReplica, ...] = REPLICAS,
        unclean_epoch: int = 0,
    ) -> None:
        if lease_ms is not None:
            self.deliver(MANAGER, Lease(self.now_ms + lease_ms))
        self.deliver(MANAGER, MasterRole(epoch, members, set_epoch, replicas, unclean_epoch))

    def follow(self, master: int | None = 1, epoch: int = 1, *, unclean_epoch: int = 0) -> str:
        """Follow a master; return the key of the connection to it, which is open."""
        self.deliver(MANAGER, SlaveRole(master, epoch, REPLICAS, unclean_epoch))
        self.tick()
        return self.dialled()
