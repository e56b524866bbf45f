"""Conditions under which a classic master may open an epoch, or continue its own after a restart. PURE.

Roles are configuration, so only the configuration names the master, and it cannot know what the replicas
hold. A node whose copy was written by another master, or is empty, therefore waits for reports of the others
first:

- A synchronous append is held by the former master and by at least `acks` of its slaves, the fewest that were
  required since the newest epoch that this copy knows; what was acknowledged before, it holds. Of N replicas,
  any N - acks have one of those among them: when so many (including this one) hold nothing beyond this copy,
  no synchronous append is lost. A copy that may lack what it acknowledged, by a power failure, by damage or
  with the disk before this one, is not one of the holders: then it needs one more.
- Neither does such a copy at another replica vouch, unless all report: then no report is left to wait for.
- A replica whose log is of a newer epoch, or of the same one and longer, prevents the opening while this is
  so: what it holds would be lost. It also closes the epoch of an open master: another one has taken over
  since, or this copy has lost its end.
- An empty copy is that of a new log, or of a replaced disk. Only the other replicas can decide which, so it
  waits for all of them. It needs none if it has opened the only epoch that it knows, or if the log is newer
  than the data folder (node/opening/folder_birth.py).
- A master that restarts in its own epoch does not need their reports, but considers those that connect in
  time. An epoch is no longer its own once it was a slave: another master may have taken appends since.

The others have `grace_ms` to connect, so that an objection arrives before the epoch is open.
"""

from collections.abc import Sequence
from typing import NamedTuple

from app.log.recorded_values import SyncFloor
from storage.log.hard_state import HardState


class FoundCopy(NamedTuple):
    """The copy of a master as its start finds it.

    vote: as on the disk. floor: recorded by the newest epoch of this copy, None: unknown. begins: if the copy
    is empty, it is that of a new log, and no disk was replaced.
    """

    vote: HardState
    floor: SyncFloor | None
    begins: bool


def may_lack(vote: HardState) -> bool:
    """Return whether a copy may lack what it acknowledged: it has neither caught up with a master nor opened
    an epoch since its power failed, it was damaged or its disk was new. vote: as on the disk."""
    return vote.term > 0 and vote.voted_for is None


class Opening:
    """Reports of the other replicas before the epoch is open."""

    def __init__(
        self, others: Sequence[str], *, required: int, needs_all: bool, grace_ms: int, now_ms: int
    ) -> None:
        """others: ids of the log's other replicas. required: number of them that must vouch. needs_all: all
        must report, of which each may hold nothing."""
        self._others = tuple(others)
        self._required = required
        self._needs_all = needs_all
        self._until_ms = now_ms + grace_ms
        self._heard: dict[str, None] = {}  # those that vouch
        self._doubted: dict[str, None] = {}  # those that may lack what they acknowledged
        self._seen: dict[str, None] = {}  # all these, and those that hold nothing
        self._objections: dict[str, str] = {}

    def require(self, required: int) -> None:
        """The settings of the log have changed: so many replicas must vouch."""
        self._required = required

    def heard(self, replica: str) -> None:
        """The replica holds a beginning of this log."""
        self._forget(replica)
        self._heard[replica] = self._seen[replica] = None

    def doubted(self, replica: str) -> None:
        """The replica holds a beginning of this log, and may have held more."""
        self._forget(replica)
        self._doubted[replica] = self._seen[replica] = None

    def empty(self, replica: str) -> None:
        """The replica holds nothing: it cannot vouch for what it may have held."""
        self._forget(replica)
        self._seen[replica] = None

    def object(self, replica: str, reason: str) -> None:
        """The replica holds what this copy lacks."""
        self._forget(replica)
        self._objections[replica] = reason

    def _forget(self, replica: str) -> None:
        for reports in (self._heard, self._doubted, self._seen, self._objections):
            reports.pop(replica, None)

    def is_complete(self, now_ms: int) -> bool:
        """Return whether the epoch may be opened now."""
        if self._objections or self._missing > 0:
            return False
        return self._has_seen_all or (now_ms >= self._until_ms and not self._needs_all)

    @property
    def _has_seen_all(self) -> bool:
        return len(self._seen) == len(self._others)

    @property
    def _missing(self) -> int:
        """Number of replicas that must vouch and do not."""
        vouching = len(self._heard) + (len(self._doubted) if self._has_seen_all else 0)
        return self._required - vouching

    @property
    def reason(self) -> str:
        """Return why the epoch is not open yet, and what an operator can do."""
        if self._objections:
            replica, reason = next(iter(self._objections.items()))
            return (
                f"replica {replica} has records that this copy lacks ({reason}): make {replica} the master, "
                f"or give this node a copy of its log (docs/operations.md, section 7); to discard them, "
                f"remove its copy or set unclean = true"
            )
        if self._missing > 0:
            missing = [each for each in self._others if each not in self._heard and each not in self._doubted]
            return (
                f"{', '.join(missing)} may hold synchronous appends that this copy lacks: start "
                f"{min(self._missing, len(missing))} of these replicas, or set unclean = true"
            )
        if self._needs_all:
            missing = [other for other in self._others if other not in self._seen]
            return (
                f"{', '.join(missing)} may hold records, of which this copy has received none: start these "
                f"replicas, or set unclean = true"
            )
        return "this master waits for the other replicas to connect"
