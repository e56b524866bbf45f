"""Controllers without a log: a metadata state that commits what is decided at once, and a clock."""

from collections.abc import Sequence
from typing import Any

import msgspec

from app.controller.active.controller import ActiveController
from app.controller.active.rounds import Answer
from app.controller.commands import (
    AlterSyncStateSet,
    AnyCommand,
    ApplyForReplicaId,
    CreateLog,
    Done,
    Reason,
    Refusal,
    RegisterReplica,
)
from app.controller.config import ControllerConfig
from app.controller.events import AnyEvent, MetadataRebuilt, decode_event, encode_event
from app.controller.liveness import Report
from app.controller.messages import BrokerHeartbeatAnswer
from app.controller.metadata import Log, LogSpec
from app.controller.state_machine import Metadata

NODES = ("n1", "n2", "n3")
CONFIG = ControllerConfig()


def spec(*replicas: str, **settings: Any) -> LogSpec:
    return LogSpec(replication="controller", replicas=replicas or NODES, **settings)


class Quorum:
    """The controllers as one: an active controller, and the events that are committed."""

    def __init__(self, nodes: Sequence[str] = NODES, configured: dict[str, LogSpec] | None = None) -> None:
        self.nodes = tuple(nodes)
        self.configured = configured or {}
        self.metadata = Metadata()
        self.events: list[AnyEvent] = []
        self.now_ms = 10_000
        self.connected = set(self.nodes)
        self.offsets: dict[tuple[str, str], tuple[int, int, int]] = {}  # (node, log) -> epoch, max, confirm
        self.lacking: set[str] = set()  # nodes whose copies lack what a master needs
        self.full: set[Any] = set()  # nodes whose disks have no space, or (node, log): for that log
        self.confirms = False  # whether heartbeats name the last answer that their node has received
        self.deaf: set[str] = set()  # nodes that receive no answers
        self._heartbeat_id = 1
        self._received: dict[str, int] = {}
        self.fail_over()

    def fail_over(self) -> None:
        """Another controller becomes active: what was volatile is gone."""
        self.active = ActiveController(
            node_id="c1",
            config=CONFIG,
            metadata=self.metadata,
            brokers=self.nodes,
            configured=self.configured,
            make_log_id=lambda name, generation: hash_of(name, generation),
            connected=[node for node in self.nodes if node in self.connected],
            now_ms=self.now_ms,
        )

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    def let_pass(self, ms: int, *heard: str) -> None:
        """Time passes, then these nodes are heard, all if none is named, and a round follows."""
        self.pass_time(ms)
        self.heartbeats(*heard)
        self.turn()

    def turn(self) -> list[tuple[Any, Answer]]:
        """One round, committed at once; the answers that it gives."""
        round_ = self.active.next_round(
            term=1, next_index=len(self.events), now_ms=self.now_ms, time_ms=self.now_ms
        )
        if round_ is None:
            return []
        if not round_.events:
            return round_.answers
        for event in round_.events:
            self.metadata.apply(len(self.events), decode_event(encode_event(event)))
            self.events.append(event)
        return self.active.applied(len(self.events) - 1)

    def scan(self) -> None:
        """Let the active controller look around."""
        self.now_ms += CONFIG.scan_interval_ms
        self.turn()

    def ask(self, command: AnyCommand) -> Answer:
        self.active.ask(command, command)
        answers = {id(token): answer for token, answer in self.turn()}
        return answers[id(command)]

    def done(self, command: AnyCommand) -> Done:
        answer = self.ask(command)
        assert isinstance(answer, Done), answer
        return answer

    def refused(self, command: AnyCommand) -> Reason:
        answer = self.ask(command)
        assert isinstance(answer, Refusal), answer
        return answer.reason

    def log(self, name: str = "a") -> Log:
        log = self.metadata.log(name)
        assert log is not None
        return log

    def id_of(self, node: str, name: str = "a") -> int:
        replica = self.log(name).of_node(node)
        assert replica is not None
        return replica.id

    def create(self, name: str = "a", **settings: Any) -> Log:
        self.done(CreateLog(name, spec(*self.nodes, **settings), f"create {name} {len(self.events)}"))
        return self.log(name)

    def rebuild(self, *doubtful: str, unnamed: dict[str, tuple[str, ...]] | None = None) -> None:
        """The controllers are rebuilt from a copy of the metadata. doubtful: logs of unknown last set.
        unnamed: nodes that keep a copy of a log and are not among its nodes."""
        event = MetadataRebuilt(
            log="__controller", doubtful=doubtful, unnamed=unnamed or {}, keeps_former=True
        )
        self.metadata.apply(len(self.events), event)
        self.events.append(event)

    def register(self, node: str, name: str = "a", code: str = "") -> int:
        """Both steps of C-03; the replica id."""
        generation, code = self.log(name).generation, code or f"code {node}"
        replica_id = self.done(ApplyForReplicaId(name, generation, node, code)).value
        assert replica_id is not None
        self.done(RegisterReplica(name, generation, node, replica_id, code, f"{node}:10911"))
        self.heartbeat(node)
        return replica_id

    def heartbeat(self, node: str) -> BrokerHeartbeatAnswer:
        """As a node that keeps a copy of every log that it has registered one of."""
        self.connected.add(node)
        reports = []
        for log in self.metadata:
            replica = log.of_node(node)
            if replica is not None:
                epoch, end, confirm = self.offsets.get((node, log.name), (log.master_epoch, 0, 0))
                able = node not in self.lacking
                copy = log.name, log.generation, replica.id
                has_room = self.full.isdisjoint((node, (node, log.name)))
                reports.append(Report(*copy, epoch, end, confirm, able, has_room))
        answered = self._received.get(node, 0) if self.confirms else None
        self._heartbeat_id += 1
        if node not in self.deaf:
            self._received[node] = self._heartbeat_id
        return self.active.heartbeat(
            self._heartbeat_id, node, len(self.events) - 1, reports, self.now_ms, answered
        )

    def heartbeats(self, *nodes: str) -> None:
        for node in nodes or self.nodes:
            self.heartbeat(node)

    def with_master(self, name: str = "a", **settings: Any) -> Log:
        """A log whose replicas are all registered and alive, with a first master: n1 by default."""
        self.create(name, **settings)
        self.heartbeats()
        for node in self.log(name).spec.replicas:
            self.register(node, name)
        self.heartbeats()
        self.scan()
        self.open_epoch(name)
        return self.log(name)

    def open_epoch(self, name: str = "a") -> None:
        """The master opens its epoch, and gets its first lease. It reports an empty log afterwards."""
        log = self.log(name)
        assert log.master_node is not None
        before = self.offsets.get((log.master_node, name))
        self.offsets[log.master_node, name] = (log.master_epoch, 1, 0)
        self.heartbeat(log.master_node)
        self.scan()
        del self.offsets[log.master_node, name]
        if before is not None:
            self.offsets[log.master_node, name] = before
        self.heartbeat(log.master_node)
        assert not self.log(name).is_opening

    def alter(self, *nodes: str, name: str = "a", **changes: Any) -> Answer:
        """The master asks for the set of these nodes, with the newest epochs unless `changes` has others."""
        log = self.log(name)
        wanted = tuple(self.id_of(node, name) for node in nodes)
        command = AlterSyncStateSet(
            name, log.generation, log.master or 0, log.master_epoch, log.set_epoch, wanted
        )
        return self.ask(msgspec.structs.replace(command, **changes))

    def join_all(self, name: str = "a") -> None:
        self.heartbeats()
        answer = self.alter(*self.log(name).spec.replicas, name=name)
        assert isinstance(answer, Done), answer


def hash_of(name: str, generation: int) -> int:
    return sum(map(ord, name)) * 1_000 + generation + 1
