"""The SyncStateSet from its master's view: its members, requested changes, and counted members (C-12). PURE.

Members are replica ids: a node whose disk was replaced is another member.
"""

from collections.abc import Mapping

from app.ha.roles import acks_needed
from app.log.contract import NO_INDEX


class SyncStateSet:
    """Whatever was asked for under one set epoch may still be accepted, answered or not, until a newer set
    epoch is known; and who should join may be left out, being dead by then. So an append needs `acks` members
    of the set that holds, and every member of each set that was asked for. The floor of min_in_sync_replicas
    counts by the smallest of them.

    acks: how many members must hold an append, 0 for all of them. With fewer than all, a set is asked for
    only once each of its members holds everything that is confirmed: then any part of it that is accepted
    has enough holders of every record.

    Invariant: the master is in every set.
    """

    def __init__(self, master_id: int, members: tuple[int, ...], epoch: int, acks: int = 0) -> None:
        self._master_id = master_id
        self.members = self._ordered(members)
        self.epoch = epoch
        self.acks = acks
        self._asked: dict[tuple[tuple[int, ...], int], None] = {}  # (members, acks)
        self._prepared: tuple[int, ...] = ()  # to be asked for, once all of it hold what is confirmed
        self.wanted: tuple[int, ...] | None = None
        self.wanted_acks = 0

    def _ordered(self, members: tuple[int, ...]) -> tuple[int, ...]:
        others = sorted(member for member in dict.fromkeys(members) if member != self._master_id)
        return (self._master_id, *others)

    @property
    def counts_all(self) -> bool:
        """True if every member of the set that holds must have an append."""
        return acks_needed(len(self.members), self.acks) == len(self.members)

    @property
    def counted(self) -> tuple[int, ...]:
        """Replicas that an acknowledgement may need, the master first."""
        asked = (member for members, _acks in self._asked for member in members)
        return self._ordered((*self.members, *asked, *self._prepared))

    @property
    def certain_size(self) -> int:
        """Minimum size of the set, whatever the outcome of the requests."""
        staying = (sum(member in self.members for member in asked) for asked, _acks in self._asked)
        return min(staying, default=len(self.members))

    def confirmed(self, marks: Mapping[int, int]) -> int:
        """Return the last index that enough members hold (C-08, C-12).

        marks: by replica id the last index acknowledged, NO_INDEX or absent for none.
        """
        held = sorted((marks.get(member, NO_INDEX) for member in self.members), reverse=True)
        index = held[acks_needed(len(held), self.acks) - 1]
        for members in (*(asked for asked, _acks in self._asked), self._prepared):
            index = min(index, min((marks.get(member, NO_INDEX) for member in members), default=index))
        return index

    def want(self, members: tuple[int, ...], acks: int = 0, *, ready: bool = True) -> None:
        """The master wants this set from now on. A request for the present one settles open requests.

        ready: whether each of the members is known to hold all that is confirmed. Otherwise nothing is
        requested yet, and nothing more is confirmed that one of them lacks.
        """
        members = self._ordered(members)
        self._prepared = ()
        needed = acks_needed(len(members), acks)
        is_held = members == self.members and needed == acks_needed(len(members), self.acks)
        if is_held and not self._asked:
            self.wanted = None
        elif not ready:
            self._prepared = members
        else:
            self.wanted, self.wanted_acks = members, acks
            self._asked[members, acks] = None

    def changed(self, epoch: int, members: tuple[int, ...], acks: int = 0) -> bool:
        """Adopt the controller's set; return whether it is new."""
        if epoch <= self.epoch or self._master_id not in members:
            return False
        self.members, self.epoch, self.acks = self._ordered(members), epoch, acks
        self._asked.clear()
        self._prepared = ()
        self.wanted = None
        return True
