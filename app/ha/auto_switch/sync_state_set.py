"""The SyncStateSet as its master knows it: what it is, what it may become, who counts (C-12). PURE.

Members are replica ids: a node whose disk was replaced is another member.
"""


class SyncStateSet:
    """Whatever was asked for under one set epoch may still be accepted, answered or not, until a newer set
    epoch is known. So acks count by the union of the set and of everything asked for, and the floor of
    min_in_sync_replicas by the smallest of them; and who should join may be left out, being dead by then.

    Invariant: the master is in every set.
    """

    def __init__(self, master_id: int, members: tuple[int, ...], epoch: int) -> None:
        self._master_id = master_id
        self.members = self._ordered(members)
        self.epoch = epoch
        self._asked: dict[tuple[int, ...], None] = {}
        self.wanted: tuple[int, ...] | None = None

    def _ordered(self, members: tuple[int, ...]) -> tuple[int, ...]:
        others = sorted(member for member in dict.fromkeys(members) if member != self._master_id)
        return (self._master_id, *others)

    @property
    def counted(self) -> tuple[int, ...]:
        """Who must hold an append before it is acknowledged, the master first."""
        return self._ordered((*self.members, *(member for asked in self._asked for member in asked)))

    @property
    def certain_size(self) -> int:
        """How many members the set has at least, whatever becomes of the requests."""
        staying = (sum(member in self.members for member in asked) for asked in self._asked)
        return min(staying, default=len(self.members))

    def want(self, members: tuple[int, ...]) -> None:
        """The master wants this set from now on. Wanting the one it has settles what is in doubt."""
        members = self._ordered(members)
        if members == self.members and not self._asked:
            self.wanted = None
            return
        self.wanted = members
        self._asked[members] = None

    def changed(self, epoch: int, members: tuple[int, ...]) -> bool:
        """The controller's set; whether it is news."""
        if epoch <= self.epoch or self._master_id not in members:
            return False
        self.members, self.epoch = self._ordered(members), epoch
        self._asked.clear()
        self.wanted = None
        return True
