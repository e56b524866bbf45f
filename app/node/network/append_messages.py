"""Messages between nodes about appends of clients: many in one frame, and their answers. Encoding: wire.py.

A node sends them only to a peer whose hello announces them (peer_transport.py).
"""

from typing import Annotated, Final

import msgspec

from storage.units import KIB

HEAD_MAX_BYTES: Final = 64 * KIB
DECLINED: Final = 0  # status of an append that was not begun: its sender forwards it as an HTTP call


class CarriedAppend(msgspec.Struct, frozen=True, array_like=True):
    """One client's append. head: log, query and headers (app/api/append/carried_head.py); clients repeat
    theirs, so the receiver keeps what it has parsed. timeout_ms: what is left of it."""

    id: int
    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=60_000)]
    head: Annotated[bytes, msgspec.Meta(max_length=HEAD_MAX_BYTES)]
    request_id: Annotated[bytes, msgspec.Meta(max_length=255)]
    body: bytes


class CarriedAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The answer to one of them. headers: those of the log, without those of a connection."""

    id: int
    status: int
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""


class CarriedAppends(msgspec.Struct, frozen=True, array_like=True, tag_field="kind", tag=40):
    """Appends for logs that the receiver leads, as far as the sender knows."""

    appends: tuple[CarriedAppend, ...]


class CarriedAnswers(msgspec.Struct, frozen=True, array_like=True, tag_field="kind", tag=41):
    """Answers, in any order."""

    answers: tuple[CarriedAnswer, ...]


AppendMessage = CarriedAppends | CarriedAnswers
