"""Requests to the other replicas of a damaged log, for settled batches and for terms."""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from app.log.contract import NO_INDEX
from app.node.network.peer_calls import PeerCalls
from app.node.network.repair_messages import FetchAnswer, FetchRequest, TermAnswer, TermRequest
from storage.format.batch import Batch

ANSWER_TIMEOUT_S: Final = 2.0


class PeerReplicas:
    """Requests to the other replicas of one log, each with a timeout."""

    def __init__(self, calls: PeerCalls, log_id: int, peers: Sequence[str]) -> None:
        self._calls = calls
        self._log_id = log_id
        self._peers = tuple(peers)

    async def fetch(
        self, peer: str, first_index: int, last_index: int, *, held: bool = False
    ) -> FetchAnswer | None:
        """Return the answer of `peer` to a request for the batches of a range; None without one in time.
        held: as in FetchRequest."""
        answer = await self._calls.ask(
            peer,
            self._log_id,
            lambda call_id: FetchRequest(call_id, first_index, last_index, held),
            ANSWER_TIMEOUT_S,
        )
        return answer if isinstance(answer, FetchAnswer) else None

    async def batch_at(self, index: int) -> Batch | None:
        """Return the batch that begins at `index`, from the first peer that sends it."""
        async for answer in self._answers(index):
            if answer.batches and answer.batches[0].base_index == index:
                return answer.batches[0]
        return None

    async def exist(self, index: int) -> bool:
        """Return whether a peer has committed records of the log. index: one that it may hold."""
        async for answer in self._answers(index):
            if answer.settled_index != NO_INDEX:
                return True
        return False

    async def term(self, peer: str) -> TermAnswer | None:
        """Return the term of `peer`; None without an answer in time."""
        answer = await self._calls.ask(peer, self._log_id, TermRequest, ANSWER_TIMEOUT_S)
        return answer if isinstance(answer, TermAnswer) else None

    async def _answers(self, index: int) -> AsyncIterator[FetchAnswer]:
        for peer in self._peers:
            answer = await self.fetch(peer, index, index)
            if answer is not None:
                yield answer
