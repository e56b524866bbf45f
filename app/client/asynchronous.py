"""Client and producer for asyncio: the blocking ones, called in threads of their own."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Self, TypeVar

from app.arguments import check_whole
from app.client.client import (
    DEFAULT_ENDPOINT,
    FOLLOW_WAIT_MS,
    Appended,
    CommitlogClient,
    Page,
    check_endless,
)
from app.client.consumer import Consumer
from app.client.producer import RecordDelivery, RecordProducer
from app.client.records import Record, RecordLike

Returned = TypeVar("Returned")


class AsyncCommitlogClient:
    """One log of a cluster, for asyncio. Retries, leader and idempotency keys: as of CommitlogClient.

    max_calls: calls at a time; a further one waits. Each open call holds a thread, so a `follow` takes
    one permanently. A cancelled call ends for its caller; the request itself may still be applied, and holds
    its thread until it is answered.
    """

    def __init__(
        self, endpoints: Sequence[str] | str = DEFAULT_ENDPOINT, *, max_calls: int = 32, **options: Any
    ) -> None:
        """options: log, token, give_up_s, as of CommitlogClient."""
        check_whole("max_calls", max_calls, 1)
        self.blocking = CommitlogClient(endpoints, **options)
        self._max_calls, self._is_closed = max_calls, False
        self._threads, self._process = _new_threads(max_calls), os.getpid()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Calls that were made before, also those that wait, end by themselves; later
        ones raise ValueError."""
        self._is_closed = True
        self._own_threads().shutdown(wait=False)
        self.blocking.close()

    async def append(self, records: Iterable[RecordLike], **options: Any) -> Appended:
        """Append `records` as one: all are committed, consecutively, or none. Raises ClientError."""
        return await self._call(self.blocking.append, records, **options)

    async def append_arrow(self, records: Any, **options: Any) -> Appended:
        """As `append`, from an Arrow table or record batch."""
        return await self._call(self.blocking.append_arrow, records, **options)

    async def read(self, **query: Any) -> Page:
        """Return one page of records. Raises ClientError."""
        return await self._call(self.blocking.read, **query)

    async def tail(self) -> dict[str, Any]:
        """Return the beginning and the end of the log, and its committed index."""
        return await self._call(self.blocking.tail)

    async def schema(self, version: int | None = None) -> dict[str, Any]:
        """Return one version of the log's schema with its columns, by default the newest. Raises NotFound."""
        return await self._call(self.blocking.schema, version)

    async def schemas(self, *, min_index: int | None = None) -> list[dict[str, Any]]:
        """Return all versions of the log's schema, oldest first."""
        return await self._call(self.blocking.schemas, min_index=min_index)

    async def put_schema(self, definition: str | Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """Set the next version of the log's schema. options: as of CommitlogClient.put_schema."""
        return await self._call(self.blocking.put_schema, definition, **options)

    async def follow(
        self, from_index: int, *, log_id: str | None = None, **query: Any
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Yield records from `from_index` on, without end, through fail-overs. log_id: as of
        CommitlogClient.follow. Raises OtherLog when the log is created again, ValueError for an end."""
        check_endless(query)
        while True:
            page = await self.read(from_index=from_index, wait_ms=FOLLOW_WAIT_MS, log_id=log_id, **query)
            for record in page.records:
                yield record
            from_index, log_id = page.next_index, page.log_id or log_id

    async def consumer(self, name: str, **options: Any) -> "AsyncConsumer":
        """Return a reader with the cursor `name`. options: as of Consumer."""
        return AsyncConsumer(await self._call(Consumer, self.blocking, name, **options), self._call)

    def producer(self, **options: Any) -> "AsyncProducer":
        """Return a producer. options: as of RecordProducer."""
        return AsyncProducer(self.blocking, **options)

    async def _call(self, function: Callable[..., Returned], *arguments: Any, **options: Any) -> Returned:
        if self._is_closed:
            raise ValueError("the client is closed")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._own_threads(), partial(function, *arguments, **options))

    def _own_threads(self) -> ThreadPoolExecutor:
        """Return the threads of this process: after a fork, those of the other process do not exist."""
        if self._process != os.getpid():
            self._threads, self._process = _new_threads(self._max_calls), os.getpid()
        return self._threads


def _new_threads(max_calls: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_calls, thread_name_prefix="commitlog-client")


class AsyncConsumer:
    """Consumer for asyncio."""

    def __init__(self, consumer: Consumer, call: Callable[..., Any]) -> None:
        self.blocking, self._call = consumer, call

    async def poll(self, **query: Any) -> Page:
        """Return the next page; empty if nothing arrived within `wait_ms`. Raises ClientError. A cancelled
        call does not move the position."""
        page: Page = await self._call(self.blocking.next_page, **query)
        self.blocking.position = page.next_index
        return page

    async def records(self, **query: Any) -> AsyncIterator[Mapping[str, Any]]:
        """Yield records without end; commit after each page, once all of its records were taken."""
        check_endless(query)
        while True:
            page = await self.poll(**query)
            for record in page.records:
                yield record
            if page.records:
                await self.commit()

    async def commit(self, index: int | None = None) -> None:
        """Move the cursor to `index`, by default to the position. Raises ConditionFailed."""
        await self._call(self.blocking.commit, self.blocking.position if index is None else index)


class AsyncProducer:
    """Producer for asyncio: `send` waits for space in the queue alone; its delivery is awaited."""

    def __init__(self, client: CommitlogClient, **options: Any) -> None:
        self.blocking = RecordProducer(client, **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: Any) -> None:
        await asyncio.to_thread(self.blocking.__exit__, *error)

    async def close(self) -> None:
        """Flush, and end the threads. Raises as RecordProducer.close."""
        await asyncio.to_thread(self.blocking.close)

    async def send(
        self, value: str | bytes | Record | None, key: str | bytes | None = None
    ) -> RecordDelivery:
        """Queue one record as soon as there is room. A cancelled call has queued nothing. Raises as
        RecordProducer.send."""
        while True:
            try:
                return self.blocking.send(value, key, wait=False)
            except BlockingIOError:
                await asyncio.to_thread(self.blocking.wait_for_room)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all records are committed. Raises as RecordProducer.flush."""
        await asyncio.to_thread(self.blocking.flush, timeout_s)
