"""Election timer: when a member without a leader asks for votes (R-01, R-03). PURE."""

import math
from random import Random
from typing import Final

from app.raft.config import RaftConfig

DISK_WAITS_MAX: Final = 10  # longest extension of an election by a slow disk, in longest election timeouts
REMOVED_PAUSE: Final = 10  # election timeouts between two questions of a removed member for the leader


class ElectionTimer:
    """`due_ms`: the time at which the member asks for votes, or a removed one for the leader.

    `repeat_ms`: the time at which a candidate that waits repeats its question, which may have been lost.
    """

    def __init__(self, config: RaftConfig, random: Random) -> None:
        self._timeout_ms = config.election_timeout_ms
        self._random = random
        self._saving_since_ms = 0  # of the hard state that waits for the disk
        self.due_ms: float = 0
        self.repeat_ms: float = math.inf

    def restart(self, now_ms: int, *, removed: bool = False) -> None:
        self.due_ms = now_ms + self._random.randint(*self._timeout_ms) * (REMOVED_PAUSE if removed else 1)
        self.repeat_ms = math.inf

    def saving(self, now_ms: int) -> None:
        """Term or vote are being written."""
        self._saving_since_ms = now_ms

    def saved(self, now_ms: int) -> None:
        """Restart when term or vote are on disk: messages that depend on them leave only now.

        The wait for votes, or for the leader that got the vote, is extended by the time that this disk took:
        the disks of the other voters are probably as slow.
        """
        self.restart(now_ms)
        self.due_ms += min(now_ms - self._saving_since_ms, DISK_WAITS_MAX * self._timeout_ms[1])
        self.wait_to_repeat(now_ms)

    def wait_to_repeat(self, now_ms: int) -> None:
        self.repeat_ms = now_ms + self._timeout_ms[1]
