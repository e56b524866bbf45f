"""Messages between nodes beside replication: batches for a damaged log, terms for a lost vote, and digests
that compare two replicas. Encoding: wire.py.

Every request carries a random `id`; its answer carries the same. Only settled (committed) batches are sent or
compared, others only on request. All indexes are inclusive.
"""

from typing import Annotated, Final

import msgspec

from storage.format.batch import Batch
from storage.units import MIB

FETCH_MAX_BYTES: Final = MIB  # of batches in one answer, but always at least one batch
DIGEST_MAX_BYTES: Final = 16 * MIB  # of batches that one digest covers, but always at least one

Index = Annotated[int, msgspec.Meta(ge=-1)]
Id = Annotated[int, msgspec.Meta(ge=0)]


class PeerCall(msgspec.Struct, frozen=True, array_like=True, tag_field="kind"):
    """A request of one node to another about a log, or its answer."""

    id: Id


class FetchRequest(PeerCall, frozen=True, array_like=True, tag=20):
    """Request the settled batches from the one that begins at `first_index` to the one that ends at
    `last_index`, as many as fit an answer.

    held: all durable ones; the asking node proves by its own log that they are what it held. Older versions
    do not know it.
    """

    first_index: Index
    last_index: Index
    held: bool = False


class FetchHead(PeerCall, frozen=True, array_like=True, tag=21):
    """begin_index, settled_index: the part of its log that the peer may send; NO_INDEX, NO_INDEX: nothing.

    busy: the peer has reached its rate limit; ask again later.
    """

    begin_index: Index
    settled_index: Index
    busy: bool = False


class FetchAnswer(FetchHead, frozen=True, array_like=True, tag=21):
    """The answer and its batches, consecutive; none if the peer is busy or does not hold the first one."""

    batches: tuple[Batch, ...] = ()


class TermRequest(PeerCall, frozen=True, array_like=True, tag=22):
    """Request for the peer's term, after a loss of what this node promised (R-01), or for its clock."""


class TermAnswer(PeerCall, frozen=True, array_like=True, tag=23):
    """term: the peer's; a vote of the asking node in a later term could not have been counted. TERM_UNKNOWN:
    the peer may have lost its own; older versions send nothing then, and ignore it. clock_ms: the peer's
    clock, milliseconds since 1970. candidates: that the peer knows to be able to campaign. Older versions
    send neither of them."""

    term: Annotated[int, msgspec.Meta(ge=0)]
    clock_ms: int | None = None
    candidates: tuple[str, ...] = ()


class DigestRequest(PeerCall, frozen=True, array_like=True, tag=24):
    """Request for a digest of the settled batches from that of `first_index` to that of `last_index`.

    deep: from the disk, not from memory, with the chain of each batch verified.
    """

    first_index: Index
    last_index: Index
    deep: bool = False


class DigestAnswer(PeerCall, frozen=True, array_like=True, tag=25):
    """digest: over the headers (which hold the body's checksum) of the batches up to `last_index`, the end of
    the last one, which may be before the requested index; empty: nothing could be digested. chain: of the
    last batch. damaged: a batch could not be read; `last_index` is the end of the one before it.
    """

    begin_index: Index
    settled_index: Index
    last_index: Index
    digest: bytes
    chain: bytes
    damaged: bool = False


RepairMessage = FetchRequest | FetchAnswer | TermRequest | TermAnswer | DigestRequest | DigestAnswer
