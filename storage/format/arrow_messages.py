"""Claims of Arrow IPC messages, read from their flatbuffers (Message.fbs in the Arrow format)."""

import struct

import pyarrow as pa

from storage.errors import BodyTooLarge, InvalidRecords
from storage.file_system import Bytes
from storage.format.batch import HEADER_SIZE_BYTES, stored_size

_MESSAGE_TYPE, _MESSAGE_HEADER, _MESSAGE_BODY_BYTES = 1, 2, 3  # field numbers
_SCHEMA_ENDIANNESS = 0
_BATCH_BUFFERS, _BATCH_COMPRESSION = 2, 3
_SCHEMA, _RECORD_BATCH = 1, 3  # types of a message
_U16, _U32, _I32, _I64 = (struct.Struct(f"<{kind}") for kind in "HIiq")
_BUFFER = struct.Struct("<qq")  # offset, length in the message's body
_PREFIX = struct.Struct("<Ii")  # before a message: the mark, and the size of its metadata
_MARK = 0xFFFFFFFF


def _field(data: memoryview, table: int, number: int) -> int | None:
    """Return the position of a field of a flatbuffer table, None when it is absent."""
    vtable = table - _I32.unpack_from(data, table)[0]
    slot = 4 + 2 * number
    if slot >= _U16.unpack_from(data, vtable)[0]:
        return None
    offset = _U16.unpack_from(data, vtable + slot)[0]
    return table + offset if offset else None


def _follow(data: memoryview, position: int) -> int:
    return int(position + _U32.unpack_from(data, position)[0])


def is_little_endian(schema: pa.Message) -> bool:
    """Return whether the batches after a schema, which Arrow has read, are little-endian, as a log is."""
    data = memoryview(schema.metadata)
    header = _field(data, _follow(data, 0), _MESSAGE_HEADER)
    order = None if header is None else _field(data, _follow(data, header), _SCHEMA_ENDIANNESS)
    return order is None or _U16.unpack_from(data, order)[0] == 0


def unpacked_size(message: pa.Message, before: int, max_records: int, max_bytes: int) -> int:
    """Return the decompressed size that the compressed batches of a request declare, in bytes.

    before: size of those before this one. The limits are those of the request. Raises BodyTooLarge for more
    than they permit, InvalidRecords.
    """
    data = memoryview(message.metadata)
    body = memoryview(message.body) if message.body is not None else memoryview(b"")
    limit = 2 * max_bytes + 128 * max_records  # offsets, validity and timestamps beside the counted bytes
    try:
        header = _field(data, _follow(data, 0), _MESSAGE_HEADER)
        if header is None:
            raise InvalidRecords("not a valid Arrow stream: a message without content")
        batch = _follow(data, header)
        if _field(data, batch, _BATCH_COMPRESSION) is None:
            return before
        buffers = _field(data, batch, _BATCH_BUFFERS)
        if buffers is None:
            return before
        vector = _follow(data, buffers)
        total = before
        for k in range(_U32.unpack_from(data, vector)[0]):
            offset, length = _BUFFER.unpack_from(data, vector + 4 + k * _BUFFER.size)
            if length == 0:
                continue
            claimed = _I64.unpack_from(body, offset)[0]
            total += length if claimed == -1 else claimed
            if claimed < -1 or total > limit:
                raise BodyTooLarge("unpacks to more than the limit", max_bytes, "max_request_bytes")
    except struct.error as error:
        raise InvalidRecords("not a valid Arrow stream: compressed buffers out of bounds") from error
    return total


def is_plain_stream(data: Bytes, max_messages: int) -> bool:
    """Return whether an Arrow IPC stream has at most so many messages, none of them compressed.

    Reads nothing but their metadata. False if the bytes are not clearly such a stream.
    """
    view = memoryview(data)
    position = 0
    try:
        for _ in range(max_messages + 1):
            if position == len(view) or _PREFIX.unpack_from(view, position) == (_MARK, 0):
                return True
            position = _end_of_plain(view, position)
    except (struct.error, ValueError, IndexError):
        pass
    return False


def are_plain_batches(data: Bytes, max_batches: int) -> bool:
    """As is_plain_stream, for the records of encoded batches, one after the other."""
    view = memoryview(data)
    try:
        for _ in range(max_batches):
            size = stored_size(view)
            if not HEADER_SIZE_BYTES < size <= len(view):
                return False
            if HEADER_SIZE_BYTES + _end_of_plain(view[HEADER_SIZE_BYTES:size], 0) > size:
                return False
            view = view[size:]
            if not view:
                return True
    except (struct.error, ValueError, IndexError):
        pass
    return False


def _end_of_plain(data: memoryview, position: int) -> int:
    """Return the end of the schema or uncompressed record batch at the position.

    Raises ValueError or struct.error for any other bytes.
    """
    mark, size = _PREFIX.unpack_from(data, position)
    start = position + _PREFIX.size
    if mark != _MARK or size <= 0 or start + size > len(data):
        raise ValueError("no message begins here")
    metadata = data[start : start + size]
    message = _follow(metadata, 0)
    kind, header = _field(metadata, message, _MESSAGE_TYPE), _field(metadata, message, _MESSAGE_HEADER)
    if kind is None or header is None or metadata[kind] not in (_SCHEMA, _RECORD_BATCH):
        raise ValueError("neither a schema nor a record batch")
    if metadata[kind] == _RECORD_BATCH and _field(metadata, _follow(metadata, header), _BATCH_COMPRESSION):
        raise ValueError("compressed")
    body = _field(metadata, message, _MESSAGE_BODY_BYTES)
    body_bytes = 0 if body is None else int(_I64.unpack_from(metadata, body)[0])
    end = start + int(size) + body_bytes
    if body_bytes < 0 or end > len(data):
        raise ValueError("a body out of bounds")
    return end
