"""State of the log `__controller`: that of every log, and the metadata (C-09).

The driver maintains it as the state of any log: it reports stored batches, truncations, and commits. The
metadata contain committed events only; those that may still be truncated wait. So the snapshot of the log's
state is the snapshot of the metadata, and what it covers may be trimmed from the log.
"""

from collections import deque
from typing import Final

import msgspec

from app.controller.events import AnyEvent, decode_event, encode_event
from app.controller.metadata import CONTROLLER_LOG
from app.controller.state_machine import Metadata
from app.log.restoring import WholeRestoring
from app.log.snapshot import Capture
from app.log.state import DAY_MS, LogState
from storage.errors import NewerFormat
from storage.file_system import Bytes
from storage.format.batch import Batch
from storage.format.records import read_columns

RECENT_EVENTS_MAX: Final = 10_000


class _StateSnapshot(msgspec.Struct, array_like=True):
    log: bytes
    metadata: bytes
    waiting: list[tuple[int, bytes]]


class MetadataLogState(LogState):
    """LogState with the metadata in it. Invariant: `metadata` holds exactly the committed events."""

    def __init__(self, *, idempotency_ms: int = DAY_MS) -> None:
        super().__init__(idempotency_ms=idempotency_ms)
        self._metadata = Metadata()
        self._waiting: deque[tuple[int, AnyEvent]] = deque()  # (index, event), not committed yet
        self._recent_events: deque[tuple[int, AnyEvent]] = deque(maxlen=RECENT_EVENTS_MAX)

    @property
    def metadata(self) -> Metadata:
        """The committed metadata. Read it again each time: an adopted state is another object."""
        return self._metadata

    def take_recent_events(self) -> list[tuple[int, AnyEvent]]:
        """Return the events applied since the last call, oldest first: for journals.

        At most RECENT_EVENTS_MAX are kept.
        """
        taken = list(self._recent_events)
        self._recent_events.clear()
        return taken

    def apply(self, batch: Batch) -> None:
        """As LogState.apply. Raises NewerFormat for a record that is not an event of this version."""
        before = self.applied_index
        super().apply(batch)
        if self.applied_index == before or batch.is_control:
            return
        for index, value in enumerate(read_columns(batch).column("value").to_pylist(), batch.base_index):
            try:
                self._waiting.append((index, decode_event(value)))
            except (ValueError, TypeError) as error:
                place, reason = f"record {index} of {CONTROLLER_LOG}", f"unknown event ({error})"
                raise NewerFormat(place, reason) from error
        self._take_committed()

    def truncate_after(self, index: int) -> None:
        super().truncate_after(index)
        while self._waiting and self._waiting[-1][0] > index:
            self._waiting.pop()

    def committed(self, index: int) -> None:
        super().committed(index)
        self._take_committed()

    def _take_committed(self) -> None:
        while self._waiting and self._waiting[0][0] <= self.committed_index:
            index, event = self._waiting.popleft()
            self._metadata.apply(index, event)
            self._recent_events.append((index, event))

    def capture(self) -> Capture:
        """As LogState.capture, in one piece: the metadata is small, and changes in place."""
        log = super().capture()
        waiting = [(index, encode_event(event)) for index, event in self._waiting]
        snapshot = _StateSnapshot(b"".join(log.take(1 << 62)), self._metadata.snapshot(), waiting)
        return Capture(log.index, log.committed_index, iter([msgspec.msgpack.encode(snapshot)]))

    @classmethod
    def restoring(cls, *, idempotency_ms: int = DAY_MS) -> WholeRestoring[LogState]:
        """As LogState.restoring."""
        return WholeRestoring(lambda data: cls.restore(data, idempotency_ms=idempotency_ms))

    @classmethod
    def restore(cls, data: Bytes, *, idempotency_ms: int = DAY_MS) -> "MetadataLogState":
        """Invert snapshot. Raises ValueError."""
        try:
            snapshot = msgspec.msgpack.decode(data, type=_StateSnapshot)
        except msgspec.DecodeError as error:
            raise ValueError(f"not a snapshot: {error}") from error
        state = cls(idempotency_ms=idempotency_ms)
        state.become(LogState.restore(snapshot.log, idempotency_ms=idempotency_ms))
        state._metadata = Metadata.restore(snapshot.metadata)
        state._waiting = deque((index, decode_event(value)) for index, value in snapshot.waiting)
        return state
