"""Lines of a stream that enter the log as one append. PURE.

Each line of a stream is an append of its own. Plain lines that arrived together and have no conditions of
their own are decoded, checked, stored and acknowledged together, and each gets its own answer: the log and
the answers are those of single appends that share a batch.
"""

from collections import deque
from typing import Final

import msgspec

from app.api.append.json_bodies import plain_lines
from app.settings.model import Limits
from storage.format.records import RecordColumns

GROUP_BYTES: Final = 128 * 1024  # decoded on the event loop: heartbeats wait meanwhile


class _Range(msgspec.Struct):
    """The part of an append's answer that differs between the records of a group."""

    first_index: int
    last_index: int


_RANGE = msgspec.json.Decoder(_Range)


def take_group(arrived: deque[bytes], most: int, limits: Limits) -> list[bytes]:
    """Remove lines from the left of `arrived`, at least one, as many as may be one append. most: lines."""
    group = [arrived.popleft()]
    left_bytes = min(GROUP_BYTES, limits.max_request_bytes) - len(group[0])
    while arrived and len(group) < most and len(arrived[0]) < left_bytes:
        left_bytes -= len(arrived[0]) + 1
        group.append(arrived.popleft())
    return group


def records_of_group(group: list[bytes], limits: Limits) -> RecordColumns | None:
    """Return one record for each line, None if a line is not plain or exceeds a limit."""
    return plain_lines(b"\n".join(group), limits)


def answers_of_group(answer: bytes) -> bytes:
    """Return the answer of an append as one line for each of its records, as if each was an append."""
    found = _RANGE.decode(answer)
    before, name, _ = answer.partition(b'"first_index":')
    _, behind, after = answer.partition(b',"term":')
    head, tail = before + name, b',"count":1' + behind + after + b"\n"
    return b"".join(
        [
            b'%s%d,"last_index":%d%s' % (head, index, index, tail)
            for index in range(found.first_index, found.last_index + 1)
        ]
    )
