"""Decoding of an append's body into the request that a leader queues: every check of a body happens here,
before anything is stored (docs/api.md §3). Independent of any framework."""

from collections.abc import Mapping
from typing import Final

from app.api.append.append_digest import append_digest
from app.api.append.call import AppendCall
from app.api.append.json_bodies import AppendIn, check_record_size, decode_append, decode_lines, records_of
from app.api.append.parameters import parse_idempotency_key
from app.api.http.compression import too_large, unpack
from app.errors import CommitlogError, InvalidBody, InvalidRequest, TooLarge
from app.log.contract import APPEND_MAX_BYTES, AppendRequest
from app.log.producers import Producer
from app.media_types import ARROW_STREAM, JSON, NDJSON, OCTETS
from app.schemas.json_text import count_sign
from app.settings.model import Limits
from storage import errors as storage_errors
from storage.errors import BodyTooLarge, EmptyBody
from storage.format.arrow_input import table_from_batches, table_from_stream
from storage.format.arrow_messages import are_plain_batches, is_plain_stream
from storage.format.records import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS, RecordColumns, RecordTable
from storage.units import KIB

Heads = Mapping[bytes, bytes]
IN_PLACE_BYTES: Final = 256 * KIB  # of a body that is decoded on the event loop: heartbeats wait meanwhile
_JSON_BYTES: Final = 4 * KIB  # of JSON that is decoded there whatever it contains
_MARKS_MAX: Final = 16 * KIB  # quotes and line breaks of JSON: 10 ms
_MESSAGES_MAX: Final = 64  # of Arrow: 10 ms
_IN_THE_QUERY: Final = "is also in the query; set it in one place only"
_IN_THE_BODY: Final = "is also in the body; set it in one place only"


def decodes_in_place(call: AppendCall) -> bool:
    """Return true if the body is decoded in few milliseconds, false if a thread should do it.

    Raises UnsupportedMediaType.
    """
    body, heads, media_type = call.body, call.head.fields, call.head.media_type
    if b"content-encoding" in heads or len(body) > IN_PLACE_BYTES:
        return False
    if media_type in (JSON, NDJSON):
        return len(body) <= _JSON_BYTES or count_sign(body, b'"') + count_sign(body, b"\n") <= _MARKS_MAX
    if media_type == OCTETS:
        return True
    # Compressed records may have far more bytes than the body.
    is_plain = is_plain_stream if media_type == ARROW_STREAM else are_plain_batches
    return is_plain(body, _MESSAGES_MAX)


def read_append(call: AppendCall, limits: Limits) -> AppendRequest:
    """Decode and check a whole append.

    Raises InvalidJson, InvalidBody, InvalidRequest, TooLarge or UnsupportedMediaType.
    """
    heads, media_type = call.head.fields, call.head.media_type
    parameters = call.parameters or call.head.parameters
    key = parse_idempotency_key(heads.get(b"idempotency-key"))
    if media_type != OCTETS:
        refuse_record_headers(heads)
    body = call.body
    encoding = heads.get(b"content-encoding")
    if encoding is not None:
        body = unpack(body, encoding, limits.max_request_bytes)
    elif len(body) > limits.max_request_bytes:
        raise too_large(limits.max_request_bytes)
    records: RecordColumns | RecordTable
    stated: AppendIn | None = None
    if call.records is not None:
        records = call.records
    elif media_type == OCTETS:
        records = _one_record(body, heads, limits)
    elif media_type == JSON:
        stated = decode_append(body, limits)
        records = records_of(stated, limits)
    elif media_type == NDJSON:
        records = decode_lines(body, limits)
    else:
        records = _arrow(body, media_type, limits)
    if records.packed_bytes > APPEND_MAX_BYTES:
        got = f"as they would be stored, the records have {records.packed_bytes} bytes"
        raise TooLarge(f"{got}; an append may have {APPEND_MAX_BYTES}", APPEND_MAX_BYTES)
    request = AppendRequest(
        records,
        parameters.acks,
        parameters.timeout_ms,
        parameters.match_index,
        parameters.match_term,
        parameters.fencing_token,
        key,
        parameters.producer,
    )
    request.stream = call.stream
    if stated is not None:
        _take_conditions(request, stated)
    if key is not None or request.producer is not None:
        request.digest = append_digest(request)
    return request


def read_plain(call: AppendCall, limits: Limits) -> RecordColumns | None:
    """Return the records of a plain JSON or NDJSON append (AppendHead.group); None if it states a
    condition, or is not valid: `read_append` finds out why."""
    try:
        if call.head.media_type == NDJSON:
            return decode_lines(call.body, limits)
        stated = decode_append(call.body, limits)
        return None if stated.has_conditions else records_of(stated, limits)
    except CommitlogError:
        return None


def _one_record(body: bytes, heads: Heads, limits: Limits) -> RecordColumns:
    key = parse_key(heads)
    raw_timestamp = heads.get(b"commitlog-timestamp")
    timestamp_ms = None if raw_timestamp is None else _timestamp(raw_timestamp)
    records = RecordColumns()
    records.add(body, key, timestamp_ms)
    check_record_size(records.size_bytes, "", limits)
    return records


def refuse_record_headers(heads: Heads) -> None:
    """Raise InvalidRequest for the headers of a raw record: the records of other bodies have these fields."""
    for field in ("Key", "Timestamp"):
        name = f"Commitlog-{field}"
        if name.lower().encode() in heads:
            raise InvalidRequest(
                (
                    f"/headers/{name}",
                    f"requires the Content-Type {OCTETS}; set `{field.lower()}` in each record",
                )
            )


def parse_key(heads: Heads) -> bytes | None:
    """Return the Commitlog-Key header, UTF-8. Raises InvalidRequest."""
    key = heads.get(b"commitlog-key")
    if key is not None and not key.isascii():
        try:
            key.decode()
        except UnicodeDecodeError as error:
            got = repr(key[:40].decode("latin-1"))
            raise InvalidRequest(("/headers/Commitlog-Key", f"must be UTF-8, got {got}")) from error
    return key


def _timestamp(raw: bytes) -> int:
    digits = raw.removeprefix(b"-")
    if digits.isdigit() and len(digits) <= 15 and MIN_TIMESTAMP_MS <= int(raw) <= MAX_TIMESTAMP_MS:
        return int(raw)
    raise InvalidRequest(
        (
            "/headers/Commitlog-Timestamp",
            "must be a whole number of milliseconds since 1970 UTC, within the years 1 to 9999, "
            f"got {raw[:40].decode('latin-1')!r}",
        )
    )


def _arrow(body: bytes, media_type: str, limits: Limits) -> RecordTable:
    """Return the records of an Arrow stream or of encoded batches, completely validated."""
    decode = table_from_stream if media_type == ARROW_STREAM else table_from_batches
    try:
        return decode(
            body,
            max_records=limits.max_request_records,
            max_bytes=limits.max_request_bytes,
            max_record_bytes=limits.max_record_bytes,
            max_record_headers=limits.max_record_headers,
        )
    except EmptyBody as error:
        raise InvalidRequest(("", "must contain at least one record")) from error
    except BodyTooLarge as error:
        raise TooLarge(str(error), error.limit, error.limit_name) from error
    except storage_errors.InvalidRecords as error:
        raise InvalidBody(str(error)) from error


def _take_conditions(request: AppendRequest, stated: AppendIn) -> None:
    """Add the conditions of a JSON body; a condition that is also in the query is a 422."""
    twice: list[tuple[str, str]] = []
    for name in ("match_index", "match_term", "fencing_token"):
        given = getattr(stated, name)
        if given is not None:
            if getattr(request, name) is not None:
                twice += [(f"/{name}", _IN_THE_QUERY), (f"/query/{name}", _IN_THE_BODY)]
            setattr(request, name, given)
    producer = stated.producer
    if producer is not None:
        if request.producer is not None:
            twice += [("/producer", _IN_THE_QUERY), ("/query/producer_id", _IN_THE_BODY)]
        request.producer = Producer(producer.id, producer.epoch, producer.sequence, producer.allow_gap)
    if twice:
        raise InvalidRequest(*twice)
