"""How many slaves a synchronous append of a classic log needs (H-07). PURE."""

from dataclasses import dataclass


@dataclass(slots=True)
class SlaveNeeds:
    """asked: slaves that must hold a synchronous append (0: every append is asynchronous). automatic: only
    the slaves in sync when they are fewer than asked. floor: never fewer than these."""

    asked: int
    automatic: bool
    floor: int

    @property
    def with_all(self) -> int:
        """Return the number while all slaves are in sync."""
        return max(self.asked, self.floor)

    def now(self, in_sync: int) -> int:
        """Return the number while `in_sync` slaves are in sync."""
        return max(min(self.with_all, in_sync), self.floor) if self.automatic else self.with_all

    def least(self, floor: int) -> int:
        """Return how many slaves hold each synchronous append, at least, had the floor been `floor`."""
        return floor if self.automatic else max(self.asked, floor)
