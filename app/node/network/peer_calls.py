"""Requests to peers over the transport of replication: one answer each, or none in time."""

import asyncio
from collections.abc import Callable
from random import Random

from app.futures import settle
from app.log.driver_interfaces import Transport
from app.node.network.repair_messages import PeerCall


class PeerCalls:
    """Open requests by their id. Owned by the event loop; nothing is repeated here."""

    def __init__(self, transport: Transport, chance: Random) -> None:
        """chance: draws ids, so that no answer to an earlier incarnation of this node matches."""
        self._transport = transport
        self._chance = chance
        self._open: dict[tuple[str, int, int], asyncio.Future[PeerCall]] = {}
        self.collecting = asyncio.Lock()  # of the caller that holds a large range of answers in memory

    async def ask(
        self, peer: str, log_id: int, make: Callable[[int], PeerCall], timeout_s: float
    ) -> PeerCall | None:
        """Send `make(id)` to a peer; return its answer, or None when it does not arrive in time."""
        call_id = self._chance.getrandbits(53)
        key = (peer, log_id, call_id)
        future: asyncio.Future[PeerCall] = asyncio.get_running_loop().create_future()
        self._open[key] = future
        try:
            self._transport.send(peer, log_id, make(call_id))
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            return None
        finally:
            del self._open[key]

    def answered(self, source: str, log_id: int, answer: PeerCall) -> None:
        """Handle an answer; one without a waiting request is dropped."""
        future = self._open.get((source, log_id, answer.id))
        if future is not None:
            settle(future, answer)
