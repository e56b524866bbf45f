"""Messages between nodes about the audit log: entries for its leader, and the answer. Encoding: wire.py."""

from typing import Annotated, Final

import msgspec

from app.node.network.repair_messages import PeerCall
from storage.units import KIB

ENTRIES_MAX: Final = 100  # of one request
ENTRY_MAX_BYTES: Final = 8 * KIB


class AuditRequest(PeerCall, frozen=True, array_like=True, tag=26):
    """Request to append entries to the audit log.

    producer: the sending node's incarnation. sequence: the same in every repeat of the request, so that the
    entries are stored once.
    """

    producer: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    sequence: Annotated[int, msgspec.Meta(ge=0)]
    entries: Annotated[tuple[bytes, ...], msgspec.Meta(min_length=1, max_length=ENTRIES_MAX)]


class AuditAnswer(PeerCall, frozen=True, array_like=True, tag=27):
    """stored: the entries are committed; otherwise the node does not lead, or the append failed."""

    stored: bool


AuditMessage = AuditRequest | AuditAnswer
