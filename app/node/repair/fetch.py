"""Choice of the next peer for the batches of a damaged range, and evaluation of its answers.

Pure: no clock, no network. One request is in flight at a time, to one peer after the other: a slow or silent
peer costs one timeout per round. Batches that no peer can send yet are requested again, at growing intervals.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from app.log.contract import NO_INDEX
from app.node.network.repair_messages import FetchAnswer
from storage.format.batch import Batch, follows_chain

PAUSE_FIRST_MS: Final = 100  # before a round of all peers is repeated
PAUSE_LAST_MS: Final = 5_000
NOT_SETTLED_ROUNDS: Final = 8  # consecutive rounds in which a majority never committed the range


class Outlook(StrEnum):
    """State of a peer according to its last answer."""

    SILENT = "silent"
    BUSY = "busy"
    OFFLINE = "nothing to give"  # empty, under repair itself, or in doubt about what it once held
    NOT_YET = "not settled there"
    TRIMMED = "trimmed there"
    OTHER = "another history there"
    GIVEN = "given"


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask `peer`, after a pause, for the batches from `first_index` on."""

    peer: str
    first_index: int
    pause_ms: int


class Fetch:
    """Gets consecutive batches from first_index to last_index, in order, in pieces.

    Ends in one of two ways: `complete`, or `hopeless`: no peer will ever send the range as it was here.
    """

    def __init__(
        self,
        first_index: int,
        last_index: int,
        peers: Sequence[str],
        majority: int,
        voters: Sequence[str] | None = None,
    ) -> None:
        """peers: at least one. majority: number of voters that form a majority. voters: the peers that vote,
        None for all; the others may only lack the range."""
        self.next_index = first_index
        self.last_index = last_index
        self._before: Batch | None = None  # the last one given
        self.outlook: dict[str, Outlook] = dict.fromkeys(peers, Outlook.SILENT)
        self._peers = tuple(peers)
        self._voters = self._peers if voters is None else tuple(voters)
        self._majority = majority
        self._begins: dict[str, int] = {}  # of the peers that have trimmed the next index
        self._turn = 0
        self._fruitless = 0  # consecutive answers without batches
        self._rounds = 0  # without batches, since a silent peer has answered
        self._never_rounds = 0

    @property
    def hopeless(self) -> bool:
        """True if the range is lost, trimmed or was never committed: no peer will ever send it."""
        last_word = (Outlook.TRIMMED, Outlook.OTHER)
        if self._voters and all(self.outlook[voter] in last_word for voter in self._voters):
            return True
        return self._never_rounds >= NOT_SETTLED_ROUNDS

    @property
    def trimmed_until(self) -> int | None:
        """The first index that any voter still holds, if all of them have trimmed the next one; otherwise
        None."""
        trimmed = all(self.outlook[voter] is Outlook.TRIMMED for voter in self._voters)
        return min(self._begins[voter] for voter in self._voters) if trimmed and self._voters else None

    @property
    def is_trimmed(self) -> bool:
        """True if a peer has trimmed the next index."""
        return Outlook.TRIMMED in self.outlook.values()

    @property
    def waits(self) -> bool:
        """True if every peer was asked and none can help yet."""
        return self._fruitless >= len(self._peers)

    @property
    def is_round_over(self) -> bool:
        """True if every peer was asked since the last batches, each as often."""
        return self.waits and self._fruitless % len(self._peers) == 0

    @property
    def seen(self) -> str:
        """The outlook of each peer, as text."""
        return ", ".join(f"{peer}: {outlook}" for peer, outlook in self.outlook.items())

    def next(self) -> Ask:
        """Return the next request. Call only while neither complete nor hopeless."""
        peer = self._peers[self._turn % len(self._peers)]
        pause_ms = 0
        if self.is_round_over:
            pause_ms = min(PAUSE_LAST_MS, PAUSE_FIRST_MS << min(self._rounds - 1, 10))
        return Ask(peer, self.next_index, pause_ms)

    def took(self, peer: str, answer: FetchAnswer | None) -> tuple[Batch, ...]:
        """Evaluate the answer of the peer that was asked, None: none in time. Return the next batches."""
        before, self.outlook[peer] = self.outlook[peer], self._judge(peer, answer)
        if before is Outlook.SILENT and answer is not None:
            self._rounds = 0  # it may have learned something meanwhile
        if self.outlook[peer] is Outlook.GIVEN and answer is not None:
            self._fruitless = self._rounds = self._never_rounds = 0
            self._before = answer.batches[-1]
            self.next_index = self._before.next_index
            return answer.batches  # and it continues to send
        self._turn += 1
        self._fruitless += 1
        if self._fruitless % len(self._peers) == 0:
            self._end_round()
        return ()

    def _judge(self, peer: str, answer: FetchAnswer | None) -> Outlook:
        if answer is None:
            return Outlook.SILENT
        if answer.busy:
            return Outlook.BUSY
        if answer.settled_index == NO_INDEX:
            return Outlook.OFFLINE
        if answer.begin_index > self.next_index:
            self._begins[peer] = answer.begin_index
            return Outlook.TRIMMED
        if not answer.batches:
            return Outlook.NOT_YET
        return Outlook.GIVEN if self._follow(answer.batches) else Outlook.OTHER

    def _follow(self, batches: Sequence[Batch]) -> bool:
        before, next_index = self._before, self.next_index
        for batch in batches:
            if batch.base_index != next_index or batch.last_index > self.last_index:
                return False
            if before is not None and not follows_chain(batch, before.header.chain):
                return False
            before, next_index = batch, batch.next_index
        return True

    def _end_round(self) -> None:
        """Count the rounds in which a majority of the voters never committed the range."""
        never = (Outlook.NOT_YET, Outlook.TRIMMED, Outlook.OTHER)
        answered = sum(self.outlook[voter] in never for voter in self._voters)
        self._never_rounds = self._never_rounds + 1 if answered >= self._majority else 0
        self._rounds += 1
