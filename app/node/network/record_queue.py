"""Queue of the messages with records for one peer that the connection has not taken yet. PURE.

A slow link takes longer for many megabytes than a push may remain without an answer. A push that still waits
here is therefore not queued again when its dispatcher repeats it (D-07), and pushes of an earlier session are
removed when a later one begins: the peer would ignore them (D-14).
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from app.raft.messages import PushRequest

FrameBuffer = bytes | memoryview


class _Entry:
    """A message, or the rest of it. session: term and session of a push, None for another message."""

    __slots__ = ("begun", "buffers", "log_id", "push", "session", "size_bytes")

    def __init__(self, log_id: int, message: Any, buffers: Iterable[FrameBuffer]) -> None:
        self.log_id = log_id
        self.session = _session_of(message)
        self.push = _push_of(log_id, message)
        self.buffers = deque(buffers)
        self.size_bytes = sum(map(len, self.buffers))
        self.begun = False

    def take(self, max_bytes: int) -> list[FrameBuffer]:
        """Remove and return the first bytes, at most that many."""
        taken: list[FrameBuffer] = []
        self.begun = True
        while self.buffers and max_bytes > 0:
            buffer = self.buffers.popleft()
            if len(buffer) > max_bytes:
                view = memoryview(buffer)
                buffer = view[:max_bytes]
                self.buffers.appendleft(view[max_bytes:])
            taken.append(buffer)
            max_bytes -= len(buffer)
            self.size_bytes -= len(buffer)
        return taken


class RecordQueue:
    """Owned by one connection. size_bytes: of all that waits."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._entries: deque[_Entry] = deque()
        self._pushes: set[tuple[int, ...]] = set()  # of the entries
        # Log -> term and session of its newest push, since the queue was last empty.
        self._sessions: dict[int, tuple[int, int]] = {}

    def holds(self, log_id: int, message: Any) -> bool:
        """Return whether the same push waits already, or a part of it."""
        push = _push_of(log_id, message)
        return push is not None and push in self._pushes

    def put(self, log_id: int, message: Any, buffers: Sequence[FrameBuffer]) -> None:
        """Add a message. buffers: its frame."""
        entry = _Entry(log_id, message, buffers)
        if entry.session is not None and entry.session > self._sessions.get(log_id, (0, 0)):
            self._sessions[log_id] = entry.session
            self._remove_earlier(log_id, entry.session)
        self._entries.append(entry)
        self.size_bytes += entry.size_bytes
        if entry.push is not None:
            self._pushes.add(entry.push)

    def take(self, max_bytes: int) -> list[FrameBuffer]:
        """Remove and return the next bytes, at most that many, of at least one message."""
        taken: list[FrameBuffer] = []
        while self._entries and max_bytes > 0:
            entry = self._entries[0]
            before_bytes = entry.size_bytes
            taken += entry.take(max_bytes)
            max_bytes -= before_bytes - entry.size_bytes
            self.size_bytes -= before_bytes - entry.size_bytes
            if not entry.buffers:
                self._forget(self._entries.popleft())
        if not self._entries:
            self._sessions.clear()  # or it would grow with each log that was ever led here
        return taken

    def _remove_earlier(self, log_id: int, session: tuple[int, int]) -> None:
        """Remove the pushes of earlier sessions of a log, except one of which a part has left."""
        kept: deque[_Entry] = deque()
        for entry in self._entries:
            is_stale = entry.log_id == log_id and entry.session is not None and entry.session < session
            if is_stale and not entry.begun:
                self.size_bytes -= entry.size_bytes
                self._forget(entry)
            else:
                kept.append(entry)
        self._entries = kept

    def _forget(self, entry: _Entry) -> None:
        if entry.push is not None:
            self._pushes.discard(entry.push)


def _session_of(message: Any) -> tuple[int, int] | None:
    return (message.term, message.session) if isinstance(message, PushRequest) else None


def _push_of(log_id: int, message: Any) -> tuple[int, ...] | None:
    """Return what identifies a push of records: log, term, session, first and last index."""
    if not isinstance(message, PushRequest) or not message.batches:
        return None
    first_index, last_index = message.batches[0].base_index, message.batches[-1].last_index
    return (log_id, message.term, message.session, message.type, first_index, last_index)
