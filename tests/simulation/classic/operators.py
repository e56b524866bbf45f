"""Nemesis of a classic group: faults, and an operator that trims, replaces disks and changes roles."""

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Final

from app.log.commands import Trim
from app.log.contract import NO_INDEX, Durability
from tests.simulation.controller.plan import LOG_NAME
from tests.simulation.world.sick_files import SickFiles

if TYPE_CHECKING:
    from tests.simulation.classic.group import ClassicGroup, ClassicNode

PAUSE_US: Final = (100_000, 3_000_000)  # between two events
LASTING_US: Final = (50_000, 3_000_000)
LONG_CUT_US: Final = (10_000_000, 15_000_000)
STALL_US: Final = (300_000, 6_000_000)
CLOCK_RATES: Final = (0.96, 1.04)
CHANGED_ACKS: Final = 0.5  # of the role changes
LOOK_US: Final = 1_000_000  # an operator looks so often
PATIENCE_LOOKS: Final = 5  # ... and acts on what stays so long
FOLDER: Final = f"data/logs/{LOG_NAME}"
EVENTS: Final = {
    "crash": 6,
    "power failure of all": 2,
    "clean stop": 2,
    "cut": 6,
    "long cut": 2,
    "stall": 4,  # of a process
    "suspend": 2,  # of a machine
    "hung disk": 4,
    "full disk": 3,
    "clock rate": 3,
    "trim": 6,
    "replaced disk of a slave": 3,
    "replaced disk of the master": 3,
    "restored copy": 3,  # of the log's folder, as it was some time ago
    "role change": 5,
}


class Nemesis:
    """Draws events while `active`; the operator repairs at all times what needs a person."""

    def __init__(self, group: "ClassicGroup") -> None:
        self._group = group
        self._world = group.world
        self.counts: Counter[str] = Counter()
        self.active = True
        self._old_copies: dict[str, dict[str, bytes]] = {}  # by node: a backup of the log's folder
        self._blocked = 0  # looks in a row at a master that takes no appends
        self._refused: Counter[str] = Counter()  # the same for slaves that are refused
        self._world.after(500_000, self._strike)
        self._world.after(LOOK_US, self._help_blocked_master)

    # --- faults ------------------------------------------------------------------------------------------

    def _strike(self) -> None:
        self._world.after(self._world.between(PAUSE_US), self._strike)
        if not self.active:
            return
        chance, group = self._world.random, self._group
        kind = chance.choices(list(EVENTS), weights=list(EVENTS.values()))[0]
        node = group.nodes[chance.choice(group.names)]
        lasting_us = self._world.between(LASTING_US)
        self._back_up(node)
        done = True
        if kind in ("crash", "clean stop"):
            power = kind == "crash" and chance.random() < 0.5 and self._may_lose_power(node)
            done = self.down(node, lasting_us, power=power)
            self.counts["unsynced power failure"] += done and power and not self._syncs
        elif kind == "power failure of all":
            done = self._syncs
            for each in group.nodes.values() if done else ():
                self.down(each, self._world.between(LASTING_US), power=True)
        elif kind in ("cut", "long cut"):
            line = (node.name, chance.choice(group.names))
            group.network.cuts[line] = None
            until_us = lasting_us if kind == "cut" else self._world.between(LONG_CUT_US)
            self._world.after(until_us, lambda: group.network.cuts.pop(line, None) and None)
        elif kind in ("stall", "suspend"):
            done = node.alive
            if done:
                node.stall(self._world.between(STALL_US), suspended=kind == "suspend")
        elif kind == "hung disk":
            node.hang_disk(self._world.between(STALL_US))
        elif kind == "full disk":  # no room is left, or a little
            node.files.sicken("full_disk", chance.getrandbits(16))
            self._world.after(lasting_us, node.files.recover)
        elif kind == "clock rate":
            low, high = CLOCK_RATES
            node.machine.set_rate(low + (high - low) * chance.random())
        elif kind == "trim":
            done = self._trim()
        elif kind == "replaced disk of a slave":
            done = node is not group.master and self._replace(node, lasting_us)
        elif kind == "replaced disk of the master":
            done = self._replace(group.master, lasting_us)
        elif kind == "restored copy":
            done = self._restore_copy(node, lasting_us)
        else:
            done = self.change_roles(node)
        self.counts[kind if done else f"{kind}, skipped"] += 1

    @property
    def _syncs(self) -> bool:
        return self._group.durability is Durability.FSYNC

    def _may_lose_power(self, node: "ClassicNode") -> bool:
        """With `replicated` only while another complete copy holds all that was acknowledged."""
        return self._syncs or self._is_elsewhere(node)

    def down(self, node: "ClassicNode", lasting_us: int, *, power: bool) -> bool:
        if not node.alive:
            return False
        node.crash(power=power)
        self.back(node, lasting_us)
        return True

    def back(self, node: "ClassicNode", after_us: int) -> None:
        self._world.after(after_us, lambda: None if node.alive else node.start())

    def _trim(self) -> bool:
        """Half of the time up to the end."""
        master = self._group.master
        if not master.alive or master.driver.committed_index == NO_INDEX:
            return False
        begin, end = master.driver.log.begin_index, master.driver.committed_index + 1
        until = end if self._world.random.random() < 0.5 else self._world.random.randint(begin, end)
        master.driver.command(Trim(until), lambda _answer: None)
        return True

    def _replace(self, node: "ClassicNode", after_us: int) -> bool:
        """Replace a disk only while another complete copy holds all that was acknowledged."""
        if not self._is_elsewhere(node):
            return False
        self.wipe(node)
        self.back(node, after_us)
        return True

    def _is_elsewhere(self, node: "ClassicNode") -> bool:
        return any(self._holds_all(other) for other in self._group.nodes.values() if other is not node)

    def _holds_all(self, node: "ClassicNode") -> bool:
        index = self._group.ledger.highest_index
        if not node.is_at_work:
            return False
        if node.driver.held_index < index or not node.driver._core.electable:
            return False
        is_trimmed = index < node.driver.log.begin_index
        return index == NO_INDEX or is_trimmed or self._group.checker.agrees(node.driver, index)

    def _back_up(self, node: "ClassicNode") -> None:
        """Keep a copy of the log's folder, unless there is one."""
        if node.alive and node.name not in self._old_copies:
            self._old_copies[node.name] = node.files.copy_folder(FOLDER)

    def _restore_copy(self, node: "ClassicNode", after_us: int) -> bool:
        """Put the backup back, also of a former disk, as `_replace` replaces a disk."""
        if node.name not in self._old_copies or not self._is_elsewhere(node):
            return False
        if node.alive:
            node.crash(power=False)
        node.files.put_folder(FOLDER, self._old_copies.pop(node.name))
        node.lost_us = self._world.now_us
        self.back(node, after_us)
        return True

    def wipe(self, node: "ClassicNode") -> None:
        if node.alive:
            node.crash(power=True)
        node.files = SickFiles(Random(self._world.random.getrandbits(64)))
        node.lost_us = self._world.now_us

    # --- the operator ------------------------------------------------------------------------------------

    def change_roles(self, node: "ClassicNode") -> bool:
        """The old master is stopped; then every node gets the new file and is restarted, one by one."""
        group = self._group
        if node is group.master:
            return False
        if group.master.alive:
            group.master.crash(power=False)
        group.names = (node.name, *(name for name in group.names if name != node.name))
        if self._world.random.random() < CHANGED_ACKS:
            self._change_acks(group.master)
        group.master = node
        self._blocked = 0
        self._refused.clear()
        for each in self._world.random.sample(list(group.nodes.values()), len(group.nodes)):
            if each.alive:
                each.crash(power=False)
            self.back(each, self._world.between((10_000, 2_000_000)))
        return True

    def _change_acks(self, former: "ClassicNode") -> None:
        """The new file has other acknowledgements too. More are required only once every replica knows of
        the epoch with fewer (docs/operations.md)."""
        group = self._group
        most = len(group.names) - 1
        sync_slaves, auto = self._world.random.randint(0, most), self._world.random.random() < 0.3
        before, after = (0 if group.auto else group.sync_slaves), (0 if auto else sync_slaves)
        epoch = former.driver.log.last_term
        nodes = group.nodes.values()
        if after > before and any(
            node.lost_us is not None or node.driver.log.last_term < epoch for node in nodes
        ):
            return
        group.sync_slaves, group.auto = sync_slaves, auto
        self.counts["raised acks" if after > before else "other acks"] += 1

    def _help_blocked_master(self) -> None:
        self._world.after(LOOK_US, self._help_blocked_master)
        master = self._group.master
        if not master.alive:
            return
        status = master.driver.status().core
        self._blocked = self._blocked + 1 if status.waits_for is not None else 0
        if self._blocked > PATIENCE_LOOKS:
            self._repair_roles()
        for peer in status.peers:
            refused = peer.state == "REFUSED" and status.waits_for is None
            self._refused[peer.id] = self._refused[peer.id] + 1 if refused else 0
            if self._refused[peer.id] > PATIENCE_LOOKS and self._group.nodes[peer.id].alive:
                self._refused[peer.id] = 0
                self.counts["operator removed a copy"] += 1
                self.wipe(self._group.nodes[peer.id])
                self.back(self._group.nodes[peer.id], 100_000)

    def _repair_roles(self) -> None:
        """Make the copy with the newest and longest complete log the master."""
        group = self._group
        copies = [node for node in group.nodes.values() if node.alive and node.driver._core.electable]
        best = max(
            copies, default=group.master, key=lambda n: (n.driver.log.last_term, n.driver.log.end_offset)
        )
        self._blocked = 0
        if self.change_roles(best):
            self.counts["operator changed the master"] += 1
        elif self._holds_all(best):  # those that are missing have lost their disks since
            self.counts["operator forced the epoch"] += 1
            best.unclean = True
            best.crash(power=False)
            best.start()

    def stop(self) -> None:
        """No more faults; what is down comes back."""
        self.active = False
        self.heal()

    def heal(self) -> None:
        """Restore the network and start what is down. Stalls and hung disks end by themselves: the events
        that they hold back are due at that end."""
        self._group.network.heal()
        for node in self._group.nodes.values():
            node.files.recover()
            if not node.alive:
                self.back(node, 1_000)
