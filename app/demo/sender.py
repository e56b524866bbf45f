"""Sends the flights through REST, in order, and records when and by which leader each append was
acknowledged."""

import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from app.client import CommitlogClient, Record, in_batches
from app.demo.flights import ContentHash

BATCH_RECORDS = 400
MIN_APPENDS = 50  # few flights go in smaller appends, so that a kill half-way falls between many
_GIVE_UP_S = 60.0


@dataclass
class Acknowledgement:
    """Answer to one append: the time of its records by the leader's clock (ms), term and leader."""

    timestamp: int
    term: int
    leader: str
    last_index: int
    replayed: bool


@dataclass
class Sending:
    """Progress of a sender. Read by the thread that shows it while the sender runs."""

    sent: int = 0
    last_index: int = -1
    acknowledgements: list[Acknowledgement] = field(default_factory=list)
    content: ContentHash = field(default_factory=ContentHash)
    error: Exception | None = None
    started: float = 0.0
    ended: float = 0.0


class AppendThread:
    """A thread that appends `records` one batch after the other, so that the log keeps their order.

    Each append has an idempotency key and is retried with it until it is answered: whatever happens to the
    nodes, a record is stored once.
    """

    def __init__(self, endpoints: Sequence[str], records: Iterable[Record], total: int) -> None:
        """total: number of records."""
        self.done = Sending()
        self.half_way = threading.Event()
        self._records = records
        self._total = total
        self._batch_records = max(1, min(BATCH_RECORDS, total // MIN_APPENDS))
        self._client = CommitlogClient(endpoints, give_up_s=_GIVE_UP_S)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """End after the append in progress."""
        self._stopping.set()

    def _run(self) -> None:
        run_id = uuid.uuid4().hex
        self.done.started = time.monotonic()
        try:
            for number, batch in enumerate(in_batches(self._records, self._batch_records)):
                if self._stopping.is_set():
                    return
                self.done.content.add_all(batch)
                appended = self._client.append(batch, idempotency_key=f"demo-{run_id}-{number}")
                self.done.acknowledgements.append(
                    Acknowledgement(
                        appended.timestamp,
                        appended.term,
                        appended.leader,
                        appended.last_index,
                        appended.replayed,
                    )
                )
                self.done.last_index = appended.last_index
                self.done.sent += appended.count
                if 2 * self.done.sent >= self._total:
                    self.half_way.set()
        except Exception as error:  # the thread that shows the progress raises it
            self.done.error = error
        finally:
            self.done.ended = time.monotonic()
            self._client.close()


def gap_ms(acknowledgements: Sequence[Acknowledgement], killed_term: int) -> int | None:
    """Return the milliseconds from the last record up to `killed_term` to the first record of a later term,
    None if there is none: the length of the fail-over, as the notebooks compute it from the table."""
    before = None
    for acknowledgement in acknowledgements:
        if acknowledgement.term <= killed_term:
            before = acknowledgement
        elif before is not None:
            return max(0, acknowledgement.timestamp - before.timestamp)
    return None
