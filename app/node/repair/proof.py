"""Batches that a peer holds and does not know to be committed, and that the own log proves to be right.

A group may have no leader to commit them: this copy is missing, another one may be in doubt or damaged, too.
The peer may then be in doubt or under repair itself: its batches are judged by what is left here
(CopyFiles.proves), not by the state of the peer.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from app.node.job_threads import in_thread
from app.node.repair.copy_files import CopyFiles
from app.node.repair.peer_replicas import PeerReplicas
from storage.care.survey import Damage
from storage.format.batch import Batch
from storage.units import MIB

PROOF_MAX_BYTES: Final = 64 * MIB  # of a range: nothing is written before all of it is proved
_BUSY_MAX: Final = 40  # answers of a peer that has reached its rate limit
_BUSY_PAUSE_S: Final = 0.05


async def proven(
    copy: CopyFiles,
    replicas: PeerReplicas,
    peer: str,
    damage: Damage,
    pause: Callable[[float], Awaitable[None]],
    *,
    voters: Sequence[str],
) -> tuple[Batch, ...]:
    """Return what the peer holds of the damage, if it is all of it and is proved; none otherwise. voters:
    of the group."""
    found: list[Batch] = []
    next_index, size, busy = damage.first_index, 0, 0
    while next_index <= damage.last_index and size < PROOF_MAX_BYTES:
        answer = await replicas.fetch(peer, next_index, damage.last_index, held=True)
        if answer is not None and answer.busy and busy < _BUSY_MAX:
            busy += 1
            await pause(_BUSY_PAUSE_S)
            continue
        if answer is None or not answer.batches or answer.batches[0].base_index != next_index:
            return ()
        found += answer.batches
        next_index = found[-1].next_index
        size += sum(batch.size_bytes for batch in answer.batches)
    is_proved = await in_thread(partial(copy.proves, damage, found, of_voter=peer in voters))
    return tuple(found) if is_proved else ()
