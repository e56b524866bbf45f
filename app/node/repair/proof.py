"""Batches that a peer holds and does not know to be committed, and that the own log proves to be right.

A group may have no leader to commit them: this copy is missing, another one may be in doubt or damaged, too.
The peer may then be in doubt or under repair itself: its batches are judged by what is left here
(CopyFiles.proves), not by the state of the peer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

from app.node.job_threads import in_thread
from app.node.repair.copy_files import CopyFiles
from app.node.repair.peer_replicas import PeerReplicas
from storage.care.survey import Damage
from storage.errors import PatchRefused
from storage.format.batch import Batch
from storage.units import MIB

PROOF_MAX_BYTES: Final = 64 * MIB  # of a range: nothing is written before all of it is proved
LARGE_BYTES: Final = 4 * MIB  # of a range from which on it is collected alone
_BUSY_MAX: Final = 40  # consecutive answers of a peer that has reached its rate limit
_BUSY_PAUSE_S: Final = 0.05


async def proven(
    copy: CopyFiles,
    replicas: PeerReplicas,
    peer: str,
    damage: Damage,
    pause: Callable[[float], Awaitable[None]],
    *,
    voters: Sequence[str],
    collecting: asyncio.Lock,
) -> tuple[Batch, ...]:
    """Return what the peer holds of the damage, if it is all of it and is proved; none otherwise. voters:
    of the group. collecting: of the node, for one large range at a time: all of it is held in memory."""
    if damage.next_offset - damage.first_offset > PROOF_MAX_BYTES:
        return ()
    found: list[Batch] = []
    rest: Damage | None = damage
    size = busy = 0
    async with AsyncExitStack() as alone:
        while rest is not None and size < PROOF_MAX_BYTES:
            await pause(_BUSY_PAUSE_S if busy else 0)
            answer = await replicas.fetch(peer, rest.first_index, rest.last_index, held=True)
            if answer is not None and answer.busy and busy < _BUSY_MAX:
                busy += 1
                continue
            if answer is None or not answer.batches:
                return ()
            try:
                rest = await in_thread(partial(copy.rest_after, rest, answer.batches))
            except PatchRefused:
                return ()  # another history
            found += answer.batches
            before, busy = size, 0
            size += sum(batch.size_bytes for batch in answer.batches)
            if before < LARGE_BYTES <= size:
                await alone.enter_async_context(collecting)
    is_proved = await in_thread(partial(copy.proves, damage, found, of_voter=peer in voters))
    return tuple(found) if is_proved else ()
