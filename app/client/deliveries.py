"""Records on their way in batches of one append each, and what became of them."""

from collections.abc import Generator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from app.arguments import check_number
from app.client.batches import Body, pack
from app.client.client import Appended
from app.client.errors import ClientError, Problem, RecordRefused
from app.client.records import Record, stored_bytes


@dataclass(frozen=True, slots=True)
class Delivered:
    """Outcome of a batch. append: None if all of its records were refused. refused: errors by position."""

    append: Appended | None
    refused: Mapping[int, ClientError]

    def append_of(self, position: int) -> Appended:
        """Return the append that holds the record. Raises the error of a refused record."""
        if position in self.refused:
            raise self.refused[position]
        assert self.append is not None  # some record was stored, or all are in `refused`
        return self.append

    def index_of(self, position: int) -> int:
        """As `append_of`; return the index of the record."""
        before = sum(refused < position for refused in self.refused)
        return self.append_of(position).first_index + position - before


class QueuedAppend:
    """Records of one append. sequence: -1 until it is sent. refused: errors of records that were taken out,
    by their positions."""

    __slots__ = (
        "body",
        "future",
        "is_closed",
        "keys",
        "others",
        "refused",
        "sequence",
        "since",
        "size",
        "values",
    )

    def __init__(self, since: float) -> None:
        self.since = since
        self.values: list[str | bytes | None] = []
        self.keys: list[str | bytes | None] = []
        self.others: list[Record] | None = None  # every record, once one of them has headers or a timestamp
        self.body: Body | None = None
        self.size = 0
        self.is_closed = False
        self.sequence = -1
        self.refused: dict[int, ClientError] = {}
        self.future: Future[Delivered] = Future()
        self.future.set_running_or_notify_cancel()  # no awaiting task can cancel it: other records share it

    def encoded(self) -> Body:
        """Return the body of the append; a repeat sends the same bytes."""
        if self.body is None:
            self.body = pack(self.values, self.keys, self.others)
        return self.body

    @property
    def is_empty(self) -> bool:
        """Return whether no record is left: each was refused."""
        return self.body is None and not self.values

    def take_out(self, problem: Problem) -> bool:
        """Take out the records that are larger than the service allows, as `problem` reports; return whether
        there were any. A body that was encoded elsewhere is taken out as a whole."""
        if problem.document.get("limit_name") != "max_record_bytes":
            return False
        if not self.values:
            self.body, self.refused = None, {0: problem}
            return True
        limit = int(problem.document["limit"])
        records = self.others or [Record(*pair) for pair in zip(self.values, self.keys, strict=True)]
        positions = [at for at in range(len(records) + len(self.refused)) if at not in self.refused]
        kept = []
        for position, record in zip(positions, records, strict=True):
            if (size := stored_bytes(record)) > limit:
                self.refused[position] = RecordRefused(size, limit)
            else:
                kept.append(record)
        self.values, self.keys = [record.value for record in kept], [record.key for record in kept]
        self.others = kept if self.others is not None else None
        self.body = None
        return len(kept) < len(records)


class RecordDelivery:
    """A record on its way. It can be awaited in asyncio."""

    __slots__ = ("_batch", "_position")

    def __init__(self, batch: Future[Delivered], position: int) -> None:
        self._batch = batch
        self._position = position

    def done(self) -> bool:
        """Return whether the record is committed, or has failed."""
        return self._batch.done()

    def result(self, timeout_s: float | None = None) -> int:
        """Wait for the commit; return the index of the record.

        Raises ClientError with the outcome of the append, or TimeoutError while it is still on its way.
        """
        return self._result(timeout_s).index_of(self._position)

    def append(self, timeout_s: float | None = None) -> Appended:
        """As `result`; return the whole append that the record is a part of."""
        return self._result(timeout_s).append_of(self._position)

    def _result(self, timeout_s: float | None) -> Delivered:
        if timeout_s is not None:
            check_number("timeout_s", timeout_s)
        return self._batch.result(timeout_s)

    def __await__(self) -> Generator[Any, None, int]:
        import asyncio

        delivered = yield from asyncio.wrap_future(self._batch).__await__()
        return delivered.index_of(self._position)
