"""Lines of a stream that enter the log as one append. PURE.

Each line of a stream is an append of its own. Plain lines that arrived together and have no conditions of
their own are decoded, checked, stored and acknowledged together, and each gets its own answer: the log and
the answers are those of single appends that share a batch.
"""

from collections import deque
from typing import Final

from app.api.append.group_answers import GroupAnswers
from app.api.append.json_bodies import plain_lines
from app.api.http.messages import Response
from app.settings.model import Limits
from storage.format.records import RecordColumns
from storage.units import KIB

GROUP_BYTES: Final = 128 * KIB  # decoded on the event loop: heartbeats wait meanwhile


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


def lines_of_answers(answer: Response, count: int) -> bytes:
    """Return the answer to a group as one line for each of its `count` lines, as if each was an append."""
    answers = GroupAnswers(answer)
    first = answers.first_index
    return b"".join([answers.body(index, 1) + b"\n" for index in range(first, first + count)])
