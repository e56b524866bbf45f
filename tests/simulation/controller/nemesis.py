"""Nemesis of a group in controller mode: faults, and an operator.

No event exceeds what the product guarantees to survive: a copy of the log is lost only while
another member of the SyncStateSet holds everything and nothing that could remove it is under
way; a controller's disk only while all other controllers are whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from app.controller.commands import ChangeLog, Done, ElectMaster, Refusal
from app.controller.log_state import MetadataLogState
from app.controller.metadata import Log
from app.controller.state_machine import Metadata
from app.errors import ConfigError
from app.ha.roles import acks_needed
from app.log.commands import Trim
from app.log.contract import NO_INDEX
from app.log.control_records import SchemaRecord
from app.log.set_schema import SetSchema
from app.log.state import DAY_MS
from app.node.metadata.rebuild import CONTROLLER_LOG, NodeFolder, rebuild
from app.node.state.checkpoints import load_state
from storage.log.aside import set_aside
from storage.log.checkpoint import SnapshotFile
from storage.log.commitlog import Commitlog
from tests.simulation.controller.node import CONTROLLER_LOG_ID, HaSimNode
from tests.simulation.controller.plan import LOG_NAME, STORAGE
from tests.simulation.world.network import LinkFaults
from tests.simulation.world.promises import Violation
from tests.simulation.world.sick_files import SickFiles

Backup = tuple[int, dict[str, dict[str, bytes]]]  # replica id, folders

if TYPE_CHECKING:
    from tests.simulation.controller.cluster import HaCluster

COMMAND_TIMEOUT_MS: Final = 2_000
STORM: Final = LinkFaults(max_delay_us=40_000, loss=0.3, duplication=0.2, holding=0.2)
LAG_WEIGHT: Final = 24  # where a part of the set acknowledges
LAG_US: Final = (40_000, 350_000)  # shorter than the time in which a slave leaves the set
CLOCK_RATES: Final = (0.96, 1.04)  # a lease leaves room for clocks that differ by a tenth
FOLDERS: Final = (f"data/logs/{LOG_NAME}", f"data/journal/{LOG_NAME}")  # of one copy
CUTS: Final = ("isolate", "cut from controllers", "deaf to controllers", "line")
FAULTS: Final = {
    "elect": 10,  # by an operator: of anybody or of one
    "crash": 4,
    "power failure": 3,
    "crash the active controller": 2,
    "crash all": 1,
    "clean stop": 3,
    "isolate": 3,
    "cut from controllers": 3,  # lost answers and requests alike; the line to master and slaves is left
    "deaf to controllers": 2,  # requests arrive, answers are lost
    "line": 2,  # of master and slave
    "storm": 1,
    "hang up": 2,  # a connection closes and comes back: a node lives that is held for dead
}
EVENTS: Final = {
    **FAULTS,
    "long cut": 1,  # one of CUTS, for more than 10 s
    "stall": 3,  # of a process
    "suspend": 1,  # of a machine
    "hung disk": 3,
    "full disk": 3,
    "clock rate": 2,
    "trim": 3,
    "trim all": 3,  # up to the end
    "replaced disk": 8,
    "copy set aside": 3,  # by a repair that finds the records nowhere
    "restored copy": 10,  # of the log's folder, as it was some time ago
    "rebuilt controllers": 4,  # two or three of them have lost their disks
    "changed settings": 5,
    "late command": 2,  # an old command of an operator again
    "set schema": 2,
}


class Nemesis:
    """Draws events while `active`. counts: what happened; an event that was not possible is `…, skipped`."""

    def __init__(self, cluster: HaCluster) -> None:
        self.counts: Counter[str] = Counter()
        self.active = cluster.plan.faults
        self._cluster = cluster
        self._world = cluster.world
        self._events = EVENTS if cluster.plan.operates else FAULTS
        if cluster.plan.in_sync is not None:
            self._events = {**self._events, "lag": LAG_WEIGHT}
        self._old_copies: dict[str, Backup] = {}  # by node
        self._old_command: ElectMaster | ChangeLog | None = None
        self._changes = 0
        self._schemas = 0
        self._strikes: dict[str, Callable[[HaSimNode, int], bool]] = {
            "elect": self._elect,
            "crash": lambda node, us: self.down(node, us, power=False),
            "power failure": self._power_failure,
            "crash the active controller": self._crash_active,
            "crash all": self._crash_all,
            "clean stop": self._stop,
            **dict.fromkeys(CUTS, self._cut_nothing),
            "long cut": self._long_cut,
            "storm": self._storm,
            "hang up": self._hang_up,
            "lag": self._lag,
            "stall": self._stall,
            "suspend": self._suspend,
            "hung disk": self._hang_disk,
            "full disk": self._fill_disk,
            "clock rate": self._clock_rate,
            "trim": partial(self._trim, everything=False),
            "trim all": partial(self._trim, everything=True),
            "replaced disk": self._replace_disk,
            "copy set aside": self._set_aside,
            "restored copy": self._restore_copy,
            "rebuilt controllers": self._rebuild,
            "changed settings": self._change_settings,
            "late command": self._repeat_command,
            "set schema": self._set_schema,
        }
        if self.active:
            self._world.after(1_000_000, self._strike)

    def _strike(self) -> None:
        if not self.active:
            return
        world, timing, cluster = self._world, self._cluster.plan.timing, self._cluster
        world.after(world.between(timing.pause_us), self._strike)
        kind = world.random.choices(list(self._events), weights=list(self._events.values()))[0]
        node = cluster.nodes[world.random.choice(cluster.plan.names)]
        lasting_us = world.between(timing.lasting_us)
        world.note(f"{kind} {node.name}")
        if cluster.plan.operates:
            self._back_up(node)
        if kind in CUTS:
            cluster.cut(kind, node.name, lasting_us, keeps=world.random.random() < 0.4)
            done = True
        else:
            done = self._strikes[kind](node, lasting_us)
        self.counts[kind if done else f"{kind}, skipped"] += 1

    # --- processes and machines --------------------------------------------------------------------------

    def down(self, node: HaSimNode, lasting_us: int, *, power: bool) -> bool:
        """Crash the node; whether it ran."""
        if not node.alive:
            return False
        node.crash(power=power)
        if self._world.random.random() < 0.7:
            self._cluster.hang_up(node.name)
        self._back(node, lasting_us)
        return True

    def _back(self, node: HaSimNode, after_us: int) -> None:
        self._world.after(after_us, lambda: self._cluster.bring_up(node))

    def _power_failure(self, node: HaSimNode, lasting_us: int) -> bool:
        may = not (node.is_broker and node.loose)
        may = may or (self._cluster.plan.operates and self.may_lose_copy(node))
        return may and self.down(node, lasting_us, power=True)

    def _crash_active(self, _node: HaSimNode, lasting_us: int) -> bool:
        active = [each for each in self._nodes if each.is_active]
        for each in active:
            self.down(each, lasting_us, power=False)
        return bool(active)

    def _crash_all(self, _node: HaSimNode, lasting_us: int) -> bool:
        """kill -9, or a power failure where it takes nothing that was acknowledged."""
        power = self._world.random.random() < 0.5 and not self._is_loose
        for each in self._nodes:
            self.down(each, lasting_us, power=power)
        return True

    @property
    def _nodes(self) -> list[HaSimNode]:
        return list(self._cluster.nodes.values())

    def _stop(self, node: HaSimNode, lasting_us: int) -> bool:
        if not node.alive:
            return False
        node.stop()
        self._world.after(3_000_000, lambda: self.down(node, lasting_us, power=False), node.life)
        self._back(node, 3_000_000 + lasting_us)
        return True

    def _stall(self, node: HaSimNode, lasting_us: int, *, suspended: bool = False) -> bool:
        if not node.alive or node.is_stalled:
            return False
        node.stall(lasting_us, suspended=suspended)
        return True

    def _suspend(self, node: HaSimNode, lasting_us: int) -> bool:
        long = self._world.random.random() < 0.3
        return self._stall(
            node,
            self._world.between(self._cluster.plan.timing.long_us) if long else lasting_us,
            suspended=True,
        )

    def _hang_disk(self, node: HaSimNode, lasting_us: int) -> bool:
        node.hang_disk(lasting_us)
        return node.alive

    def _fill_disk(self, node: HaSimNode, lasting_us: int) -> bool:
        """No room is left, or a little."""
        node.files.sicken("full_disk", self._world.random.getrandbits(16))
        self._world.after(lasting_us, node.files.recover)
        return node.alive

    def _clock_rate(self, node: HaSimNode, _lasting_us: int) -> bool:
        low, high = CLOCK_RATES
        node.machine.set_rate(low + (high - low) * self._world.random.random())
        return True

    # --- the network -------------------------------------------------------------------------------------

    def _cut_nothing(self, _node: HaSimNode, _lasting_us: int) -> bool:
        raise NotImplementedError  # cuts are of the cluster

    def _long_cut(self, node: HaSimNode, _lasting_us: int) -> bool:
        kind = self._world.random.choice(CUTS)
        long_us = self._world.between(self._cluster.plan.timing.long_us)
        self._cluster.cut(kind, node.name, long_us, keeps=self._world.random.random() < 0.4)
        return True

    def _storm(self, _node: HaSimNode, lasting_us: int) -> bool:
        self._cluster.network.faults = STORM
        self._world.after(lasting_us, self._cluster.calm)
        return True

    def _lag(self, _node: HaSimNode, lasting_us: int) -> bool:
        """Some members fall behind while the others acknowledge; then the master dies, sometimes with a
        holder of the last records."""
        cluster = self._cluster
        log = cluster.checker.truth.log(LOG_NAME)
        if log is None or log.master_node is None or len(log.set_nodes) < 3:
            return False
        chance, master = self._world.random, log.master_node
        others = [name for name in log.set_nodes if name != master]
        chance.shuffle(others)
        late = [(master, name) for name in others[: chance.randint(1, len(others) - 1)]]
        dying = [master, *(others[-1:] if chance.random() < 0.5 else ())]
        cluster.streams.cut(late)

        def fall() -> None:
            cluster.streams.heal_lines(late)
            for name in dying:
                self.down(cluster.nodes[name], lasting_us, power=chance.random() < 0.5 and not self._is_loose)

        self._world.after(self._world.between(LAG_US), fall)
        return True

    @property
    def _is_loose(self) -> bool:
        """Return True if a power failure may remove acknowledged records."""
        return any(each.loose for each in self._nodes)

    def _hang_up(self, node: HaSimNode, _lasting_us: int) -> bool:
        self._cluster.hang_up(node.name)
        return True

    # --- disks -------------------------------------------------------------------------------------------

    def may_lose_copy(self, node: HaSimNode) -> bool:
        """Return True if so many other members remain that one of them holds each acknowledged record, and no
        change that could remove a member is under way."""
        log = self._cluster.checker.truth.log(LOG_NAME)
        if log is None or log.is_opening or not log.sync_state_set:
            return False
        others = [
            each
            for each in self._cluster.brokers
            if each is not node
            and not each.doubtful
            and each.copy_id in log.sync_state_set
            and log.is_current(each.copy_id)
        ]
        members = len(log.sync_state_set)
        needed = members - acks_needed(members, log.set_acks) + 1
        return len(others) >= needed and self._set_is_settled(log)

    def _set_is_settled(self, log: Log) -> bool:
        master = next((each for each in self._cluster.brokers if each.name == log.master_node), None)
        if master is None or not master.alive or master.core.epoch != log.master_epoch:
            return False
        side = master.core._master
        return side is not None and side.set.epoch == log.set_epoch and not side.set._asked

    def may_lose_controller(self, node: HaSimNode) -> bool:
        """Return True if all other controllers are whole."""
        others = [each for each in self._nodes if each.is_controller and each is not node]
        return all(each.controllers_from is None and each.alive and each.controller.sound for each in others)

    def _replace_disk(self, node: HaSimNode, lasting_us: int) -> bool:
        if node.is_broker and not self.may_lose_copy(node):
            return False
        if node.is_controller and not self.may_lose_controller(node):
            return False
        self.wipe(node)
        self._back(node, lasting_us)
        return True

    def wipe(self, node: HaSimNode) -> None:
        """Give the node an empty disk; it is down afterwards."""
        if node.is_broker:
            node.lose_copy()
        if node.alive:
            node.crash(power=True)
            self._cluster.hang_up(node.name)
        node.files = SickFiles(Random(self._world.random.getrandbits(64)))
        node.doubtful = False
        self._old_copies.pop(node.name, None)
        if node.is_controller:
            leading = [each.controller.committed_index for each in self._nodes if each.is_controller]
            node.controllers_from = max(leading)

    def _set_aside(self, node: HaSimNode, lasting_us: int) -> bool:
        if not node.is_broker or not node.alive or not self.may_lose_copy(node):
            return False
        node.lose_copy()
        self.down(node, lasting_us, power=False)
        set_aside(node.files, f"data/logs/{LOG_NAME}")
        node.sound, node.doubtful = False, False
        return True

    def _back_up(self, node: HaSimNode) -> None:
        """Keep a copy of the log's folder, unless there is one."""
        if node.is_broker and node.alive and not node.doubtful and node.name not in self._old_copies:
            copies = {folder: node.files.copy_folder(folder) for folder in FOLDERS}
            self._old_copies[node.name] = (node.copy_id, copies)

    def _restore_copy(self, node: HaSimNode, lasting_us: int) -> bool:
        """Put a backup of the log's folder back, of any age: the node notices that its folder is a copy."""
        if not node.is_broker or node.name not in self._old_copies:
            return False
        copy_id, copies = self._old_copies[node.name]
        truth = self._cluster.checker.truth.log(LOG_NAME)
        if truth is None or copy_id != node.copy_id or truth.unclean_epoch:
            del self._old_copies[node.name]
            return False
        if not node.alive or not self.may_lose_copy(node):
            return False
        del self._old_copies[node.name]
        self._cluster.checker.copy_is_lost(node)
        self.down(node, lasting_us, power=False)
        for folder, contents in copies.items():
            node.files.put_folder(folder, contents)
        node.doubtful = True
        return True

    # --- the operator ------------------------------------------------------------------------------------

    def _elect(self, _node: HaSimNode, _lasting_us: int) -> bool:
        """At any node; sometimes of one replica, and where it is allowed, unclean."""
        chance, plan = self._world.random, self._cluster.plan
        asked = self._cluster.nodes[chance.choice(plan.names)]
        log = asked.state.metadata.log(LOG_NAME) if asked.alive else None
        if log is None:
            return False
        unclean = plan.unclean and chance.random() < 0.3
        others = [node for node in log.set_nodes if node != log.master_node]
        among = others if others and chance.random() < 0.7 else plan.broker_names
        candidate = chance.choice(among) if chance.random() < 0.95 else None
        self._ask(asked, ElectMaster(LOG_NAME, candidate, unclean, log.master_epoch))
        return True

    def _ask(self, node: HaSimNode, command: ElectMaster | ChangeLog) -> None:
        if self._old_command is None or self._world.random.random() < 0.3:
            self._old_command = command

        def answered(answer: Done | Refusal | None) -> None:
            what = "nothing" if answer is None else "done" if isinstance(answer, Done) else "refused"
            self.counts[f"{type(command).__name__}: {what}"] += 1

        node.client.ask(command, answered, COMMAND_TIMEOUT_MS)

    def _change_settings(self, node: HaSimNode, _lasting_us: int) -> bool:
        """PATCH, at any node."""
        chance, plan = self._world.random, self._cluster.plan
        if not node.alive:
            return False
        voters = len(plan.broker_names) - plan.learner
        electable = plan.broker_names[:voters]
        parts = tuple(range(2, voters + 1)) if plan.in_sync is not None else ()
        changes: dict[str, Any] = chance.choice(
            [
                {"min_in_sync_replicas": chance.choice((1, 2))},
                {"preferred": chance.choice((None, *electable))},
                {"priorities": {name: chance.randint(0, 9) for name in electable}},
                {"durability": chance.choice(("fsync", "replicated"))},
                {"in_sync_replicas": chance.choice((None, *parts))},
            ]
        )
        self._changes += 1
        self._ask(node, ChangeLog(LOG_NAME, changes, f"change-{self._changes}"))
        return True

    def _repeat_command(self, node: HaSimNode, _lasting_us: int) -> bool:
        if self._old_command is None or not node.alive:
            return False
        node.client.ask(self._old_command, lambda _answer: None, COMMAND_TIMEOUT_MS)
        return True

    def _trim(self, _node: HaSimNode, _lasting_us: int, *, everything: bool) -> bool:
        master = next((each for each in self._cluster.brokers if each.acknowledges), None)
        if master is None or master.driver.committed_index == NO_INDEX:
            return False
        begin, end = max(master.log.begin_index, 0), master.driver.committed_index + 1
        until_index = end if everything else self._world.random.randint(begin, end)
        master.command(Trim(until_index), lambda _answer: None)
        return True

    def _set_schema(self, _node: HaSimNode, _lasting_us: int) -> bool:
        master = next((each for each in self._cluster.brokers if each.acknowledges), None)
        if master is None:
            return False
        self._schemas += 1
        schema = SchemaRecord(
            version=0, format="json", definition=f"a{self._schemas} INT", compatibility="none"
        )
        master.command(SetSchema(schema), lambda _answer: None)
        return True

    # --- the controllers ---------------------------------------------------------------------------------

    def _rebuild(self, _node: HaSimNode, lasting_us: int) -> bool:
        """Two or three controllers lose their disks; all nodes stop, and an operator rebuilds the controllers
        from the copies of the metadata that are left."""
        cluster, plan = self._cluster, self._cluster.plan
        controllers = [each for each in self._nodes if each.is_controller]
        if not plan.own_controllers or any(each.controllers_from is not None for each in controllers):
            return False
        if not all(each.alive for each in self._nodes):
            return False
        if not all(folder.knows_sets for folder in self._folders()):
            return False  # a disk was replaced: only an unclean election would give a master (C-09)
        for node in self._nodes:
            node.crash(power=False)
            node.files.recover()  # the operator makes room
        lost = self._world.random.sample(controllers, self._world.random.choice((2, 3)))
        if all(metadata_of(each).log(LOG_NAME) is None for each in self._nodes if each not in lost):
            for node in self._nodes:  # nothing that is left has the state: no rebuild is possible
                self._cluster.bring_up(node)
            return False
        for node in lost:
            self.wipe(node)
            node.controllers_from = None
        folders = self._folders()
        given = partial(rebuild, folders, plan.controller_names, cluster_id="ha", storage=STORAGE)
        with_these = partial(given, configured={LOG_NAME: plan.spec}, now_ms=self._world.now_us // 1_000)
        try:
            found = with_these()
        except ConfigError:  # a copy ends before another begins: nothing proves that they are of one history
            copies = [cluster.nodes[each.node] for each in folders if each.has_copy]
            found = with_these(source=max(copies, key=_place_of).name)
        if LOG_NAME in found.doubts:
            raise Violation(f"a master epoch that no copy of the metadata has: {found.doubts}")
        cluster.checker.rebuilt(metadata_of(cluster.nodes[found.source]))
        for node in self._nodes:
            self._back(node, self._world.between((1_000, lasting_us)))
        return True

    def _folders(self) -> list[NodeFolder]:
        return [NodeFolder(each.name, each.files, "data") for each in self._nodes]


def _place_of(node: HaSimNode) -> tuple[int, int]:
    """Term and index at the end of a copy of the controllers' log whose node is down."""
    log = Commitlog.open(node.files, f"data/logs/{CONTROLLER_LOG}", log_id=CONTROLLER_LOG_ID, config=STORAGE)
    try:
        return log.last_term, log.end_index
    finally:
        log.close()


def metadata_of(node: HaSimNode) -> Metadata:
    """The metadata in a copy of the controllers' log whose node is down, all of it."""
    folder = f"data/logs/{CONTROLLER_LOG}"
    log = Commitlog.open(node.files, folder, log_id=CONTROLLER_LOG_ID, config=STORAGE)
    try:
        snapshot = SnapshotFile(node.files, f"{folder}/state")
        state, _ = load_state(log, snapshot, idempotency_ms=DAY_MS, state_type=MetadataLogState)
        assert isinstance(state, MetadataLogState)
        state.committed(log.end_index)
        return Metadata.restore(state.metadata.snapshot())
    finally:
        log.close()
