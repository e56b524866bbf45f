"""Encoding of the messages between nodes: the content of one frame of the transport, after its length.

Little-endian; the sizes count the head and the batches alone:

    head_size u32 | batches_size u32 | log_id u64 | head: msgpack array, the kind first | batches, as stored

The batches are not copied: `encode` returns them as separate buffers, `decode` as views of the frame.
"""

import struct
from typing import Final

import msgspec

from app.controller.messages import (
    AnyControllerMessage,
    BrokerHeartbeat,
    BrokerHeartbeatAnswer,
    CommandAnswer,
    CommandRequest,
)
from app.node.network.append_messages import AppendMessage, CarriedAnswers, CarriedAppends
from app.node.network.audit_messages import AuditAnswer, AuditMessage, AuditRequest
from app.node.network.repair_messages import (
    DigestAnswer,
    DigestRequest,
    FetchAnswer,
    FetchHead,
    FetchRequest,
    RepairMessage,
    TermAnswer,
    TermRequest,
)
from app.raft.messages import (
    Heartbeat,
    HeartbeatAnswer,
    PushAnswer,
    PushHead,
    PushRequest,
    PushType,
    RaftMessage,
    ReadIndexAnswer,
    ReadIndexRequest,
    StateChunk,
    StateMessage,
    StateRequest,
    TimeoutNow,
    VoteAnswer,
    VoteRequest,
)
from storage.errors import CorruptBatch
from storage.format.batch import Batch, decode_batch
from storage.units import MIB

AnyMessage = RaftMessage | StateMessage | RepairMessage | AuditMessage | AppendMessage | AnyControllerMessage
HEAD_MAX_BYTES: Final = MIB  # a piece of state is the largest
_PREFIX = struct.Struct("<IIQ")
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(
    VoteRequest
    | VoteAnswer
    | Heartbeat
    | HeartbeatAnswer
    | PushHead
    | PushAnswer
    | ReadIndexRequest
    | ReadIndexAnswer
    | TimeoutNow
    | StateRequest
    | StateChunk
    | FetchRequest
    | FetchHead
    | TermRequest
    | TermAnswer
    | DigestRequest
    | DigestAnswer
    | AuditRequest
    | AuditAnswer
    | CarriedAppends
    | CarriedAnswers
    | CommandRequest
    | CommandAnswer
    | BrokerHeartbeat
    | BrokerHeartbeatAnswer
)


class CorruptFrame(Exception):
    """The bytes are not a valid frame; `reason` is one short phrase. Close the connection."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def encode(log_id: int, message: AnyMessage) -> list[bytes | memoryview]:
    """Return the frame as buffers to be sent one after the other; log_id: 0 to 2**64 - 1."""
    if isinstance(message, PushRequest):
        head = PushHead(
            message.term,
            message.type,
            message.leader_id,
            message.committed_index,
            message.session,
            message.incarnation,
            message.index,
            message.index_term,
            message.leader_begin,
            message.reset,
            message.syncs,
        )
        return _with_head(log_id, head, message.batches)
    if isinstance(message, FetchAnswer):
        fetched = FetchHead(message.id, message.begin_index, message.settled_index, message.busy)
        return _with_head(log_id, fetched, message.batches)
    data = _ENCODER.encode(message)
    return [_PREFIX.pack(len(data), 0, log_id) + data]


def _with_head(
    log_id: int, head: PushHead | FetchHead, batches: tuple[Batch, ...]
) -> list[bytes | memoryview]:
    data = _ENCODER.encode(head)
    size = sum(batch.size_bytes for batch in batches)
    return [_PREFIX.pack(len(data), size, log_id) + data, *[batch.data for batch in batches]]


def decode(frame: memoryview) -> tuple[int, AnyMessage]:
    """Invert `encode`; the batches are views of `frame`, checksums verified. Raises CorruptFrame."""
    if len(frame) < _PREFIX.size:
        raise CorruptFrame("shorter than its prefix")
    head_size, batches_size, log_id = _PREFIX.unpack_from(frame)
    batches_start = _PREFIX.size + head_size
    if head_size > HEAD_MAX_BYTES or batches_start + batches_size != len(frame):
        raise CorruptFrame("its sizes are not those of the frame")
    try:
        head = _DECODER.decode(frame[_PREFIX.size : batches_start])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptFrame(f"head: {error}") from error
    if isinstance(head, FetchHead):
        batches = _decode_batches(frame[batches_start:], log_id)
        return log_id, FetchAnswer(head.id, head.begin_index, head.settled_index, head.busy, batches)
    if not isinstance(head, PushHead):
        if batches_size:
            raise CorruptFrame("only a push and a fetched answer carry batches")
        return log_id, head
    return log_id, _with_batches(head, _decode_batches(frame[batches_start:], log_id))


def _decode_batches(data: memoryview, log_id: int) -> tuple[Batch, ...]:
    batches: list[Batch] = []
    while len(data):
        try:
            batch = decode_batch(data, log_id=log_id)
        except CorruptBatch as error:
            raise CorruptFrame(f"batch: {error.reason}") from error
        if batches:
            before = batches[-1]
            neighbours = batch.base_index == before.next_index and batch.offset == before.next_offset
            if not neighbours or batch.term < before.term:
                raise CorruptFrame("batches are not neighbours")
        batches.append(batch)
        data = data[batch.size_bytes :]
    return tuple(batches)


def _with_batches(head: PushHead, batches: tuple[Batch, ...]) -> PushRequest:
    """Check the conditions between head and batches, and join them."""
    if head.type is PushType.APPEND:
        fits = len(batches) >= 1 and batches[0].base_index == head.index + 1
    elif head.type is PushType.TRUNCATE:
        fits = len(batches) == 1 and batches[0].base_index == head.index + 1
    else:
        fits = not batches and not head.reset
    if not fits or (batches and batches[-1].term > head.term):
        raise CorruptFrame("the batches do not fit their push")
    return PushRequest(
        head.term,
        head.type,
        head.leader_id,
        head.committed_index,
        head.session,
        head.incarnation,
        head.index,
        head.index_term,
        head.leader_begin,
        head.reset,
        head.syncs,
        batches,
    )
