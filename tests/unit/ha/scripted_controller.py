"""Scripted controllers of a group: they never err, but elect, lose answers, and are cut off from nodes."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from app.ha.roles import KnownReplica, Lease, MasterRole, SetRequest, SlaveRole, SyncStateSetUpdate
from app.log.contract import Role

if TYPE_CHECKING:
    from tests.unit.ha.group import Group

HEARTBEAT_US = 100_000
LEASE_MS = 400
TIMEOUT_US = 600_000


@dataclass
class Controller:
    """Decisions of the controllers, and their delivery by a manager. Cut off nodes receive nothing."""

    group: "Group"
    epoch: int = 0
    master: str | None = None
    members: tuple[str, ...] = ()
    set_epoch: int = 0
    elections: int = 0
    refused: int = 0
    accepted: int = 0
    heard_us: dict[str, int] = field(default_factory=dict)
    last_master: str | None = None
    cut: dict[str, None] = field(default_factory=dict)
    unclean_epoch: int = 0
    never_in_set: dict[str, None] = field(default_factory=dict)  # learners

    @property
    def replicas(self) -> tuple[KnownReplica, ...]:
        return tuple(
            KnownReplica(number, name, name, name in self.never_in_set)
            for number, name in enumerate(self.group.names, 1)
        )

    def ids(self, names: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(self.group.names.index(name) + 1 for name in names)

    def id_of(self, name: str | None) -> int | None:
        return None if name is None else self.group.names.index(name) + 1

    def reaches(self, name: str) -> bool:
        return self.group.nodes[name].alive and name not in self.cut

    def start(self) -> None:
        for name in self.group.names:
            self._heartbeat(name)
        self._watch()

    def _heartbeat(self, name: str) -> None:
        """One beat of a broker's manager: heartbeat, metadata, its wish for another set."""
        world = self.group.world
        world.after(world.random.randint(HEARTBEAT_US // 2, HEARTBEAT_US), lambda: self._heartbeat(name))
        node = self.group.nodes[name]
        if not self.reaches(name):
            return
        life, core, sent_ms = node.life, node.core, world.now_us // 1000
        request = core.set_request
        needs_election = core.needs_election
        self.heard_us[name] = world.now_us
        if request is not None:
            self._alter(name, request)
        if needs_election and self.master == name:
            self.master = None
            self.elect()
        if world.random.random() < 0.15:
            return  # the answer is lost
        role = self._role_of(name)

        def answer() -> None:
            if name not in self.cut:
                node.tell(Lease(sent_ms + LEASE_MS))
                node.tell(role)

        world.after(world.random.randint(100, 60_000), answer, life)

    def _role_of(self, name: str) -> MasterRole | SlaveRole:
        if self.master == name:
            members = self.ids(self.members)
            return MasterRole(self.epoch, members, self.set_epoch, self.replicas, self.unclean_epoch)
        return SlaveRole(self.id_of(self.master), self.epoch, self.replicas, self.unclean_epoch)

    def _alter(self, name: str, request: SetRequest) -> None:
        """C-06, all its refusals; the answer comes late, or never."""
        world = self.group.world

        def arrive() -> None:
            current = (self.master, self.epoch, self.set_epoch)
            members = tuple(self.group.names[member - 1] for member in request.members)
            live = all(self._is_live(member) for member in members)
            if current != (name, request.master_epoch, request.sync_state_set_epoch) or not live:
                self.refused += 1
                return
            self.accepted += 1
            self.members, self.set_epoch = members, self.set_epoch + 1
            changed = SyncStateSetUpdate(self.epoch, self.set_epoch, request.members)
            node = self.group.nodes[name]
            if world.random.random() < 0.7 and self.reaches(name):
                world.after(world.random.randint(100, 80_000), lambda: node.tell(changed), node.life)

        world.after(world.random.randint(100, 80_000), arrive)

    def _is_live(self, name: str) -> bool:
        return self.group.world.now_us - self.heard_us.get(name, -TIMEOUT_US) < TIMEOUT_US

    def _watch(self) -> None:
        if self.master is None or not self._is_live(self.master):
            self.elect()  # nothing, while an old lease may still be good
        self.group.world.after(HEARTBEAT_US, self._watch)

    def hand_over(self, candidate: str) -> None:
        """An operator's election: first the master gives up, or its lease runs out."""
        old, self.master = self.master, None
        if old is not None and self.reaches(old):
            node = self.group.nodes[old]
            node.tell(SlaveRole(None, self.epoch, self.replicas))
        self.group.world.after(1_000, lambda: self.elect(candidate) and None)

    def elect(self, candidate: str | None = None) -> bool:
        """C-05: a live member of the set, the larger epoch and offset first."""
        old = self.last_master
        if old is not None and self._is_live(old) and self.group.nodes[old].core.role is Role.MASTER:
            return False  # it may still answer reads by its lease
        among = self.members or tuple(n for n in self.group.names if n not in self.never_in_set)
        live = [name for name in among if self._is_live(name) and self.reaches(name)]
        wanted = [candidate] if candidate is not None else self.group.names
        others = [name for name in wanted if self._is_live(name) and self.reaches(name)]
        unclean = self.group.unclean and self.members != () and not any(name in live for name in others)
        if unclean:  # no member of the set is alive, or the operator insists
            live = others
        if not live or (candidate is not None and candidate not in live):
            return False
        nodes = self.group.nodes
        best = candidate or max(
            live, key=lambda name: (nodes[name].core.log_epoch, nodes[name].core.max_offset)
        )
        self.epoch += 1
        if unclean:
            self.unclean_epoch = self.epoch
        self.master, self.members, self.set_epoch = best, (best,), self.set_epoch + 1
        self.last_master = best
        self.elections += 1
        self.group.world.note(f"elect {best} {self.epoch}")
        for name in self.group.names:
            if self.reaches(name) and self.group.world.random.random() < 0.7:
                nodes[name].tell(self._role_of(name))
        return True
