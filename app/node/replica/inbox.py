"""Queue of messages for one log that wait for its driver's turn, in order and bounded.

A driver processes nothing while its hard state or a truncation waits for the disk, and a disk may hang.
Messages between nodes may be lost, so those beyond the bounds are dropped: their senders repeat what matters.
Nothing may be lost within a connection between a master and a slave: its transport stops reading instead. It
stops early, because all that waits is processed in one turn of the event loop, which takes 170 ms for
READ_BYTES_MAX of batches of one record. A Raft leader sends no records that a follower stores while that one
writes a term or a truncation: it waits for the answer to its COMPARE or TRUNCATE, and what was sent before is
of an earlier term or session.
"""

from collections import deque
from typing import Any, Final

from app.ha.frames import ClassicFrame, TransferFrame
from app.raft.messages import PushRequest, RaftMessage, StateChunk, StateMessage
from storage.units import MIB

MESSAGES_MAX: Final = 4_096
BYTES_MAX: Final = 64 * MIB  # of records and pieces of state
READ_BYTES_MAX: Final = 4 * MIB  # of them, from which on connections between master and slave are not read


class Inbox:
    """Owned by the driver. `dropped`: number of messages beyond the bounds since the start."""

    def __init__(
        self,
        messages_max: int = MESSAGES_MAX,
        bytes_max: int = BYTES_MAX,
        read_bytes_max: int = READ_BYTES_MAX,
    ) -> None:
        self.dropped = 0
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._read_bytes_max = read_bytes_max
        self._waiting: deque[tuple[str, Any, int]] = deque()  # source, message, its bytes
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """True while connections should not be read."""
        return len(self._waiting) >= self._messages_max or self._size_bytes >= self._read_bytes_max

    def put(self, source: str, message: Any) -> bool:
        """Queue a message; return False if it was dropped.

        A message without records is accepted while there are fewer than `messages_max`: votes and heartbeats
        still pass when pushes have used up the bytes.
        """
        size_bytes, waiting = _size_of(message), self._waiting
        is_beyond = len(waiting) >= self._messages_max or (
            size_bytes and waiting and self._size_bytes + size_bytes > self._bytes_max
        )
        if is_beyond and isinstance(message, RaftMessage | StateMessage):
            self.dropped += 1
            return False
        waiting.append((source, message, size_bytes))
        self._size_bytes += size_bytes
        return True

    def take(self) -> tuple[str, Any]:
        """Return the oldest message and its source."""
        source, message, size_bytes = self._waiting.popleft()
        self._size_bytes -= size_bytes
        return source, message


def _size_of(message: Any) -> int:
    if isinstance(message, PushRequest):
        return sum(batch.size_bytes for batch in message.batches)
    if isinstance(message, StateChunk):
        return len(message.data)
    return len(message.body) if isinstance(message, TransferFrame | ClassicFrame) else 0
