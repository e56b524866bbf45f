"""Consumer: reads a log from a named position that the log itself keeps."""

import os
import time
from collections.abc import Iterator, Mapping
from socket import gethostname
from typing import Any
from uuid import uuid4

from app.arguments import check_instance, check_whole
from app.client.client import FOLLOW_WAIT_MS, CommitlogClient, Page, check_endless
from app.client.connection import FIRST_PAUSE_S
from app.client.errors import ConditionFailed, NoAnswer, NotFound
from app.client.operations import Cursor, Operations


class Consumer:
    """Reader with a cursor: a restart, on any machine, resumes where the last `commit` was.

    position: the next index to read. Records are delivered at least once: what was read after the last
    `commit` is read again after a crash. A second consumer with the same name is noticed at the next
    `commit`, which raises ConditionFailed (`cursor-moved`) for one of the two.
    """

    def __init__(
        self, client: CommitlogClient, name: str, *, start: int | str = "earliest", fence: bool = False
    ) -> None:
        """start: where a new cursor begins: an index, "earliest" or "latest". fence: retention and trims keep
        the records from the cursor on, also of a cursor that had no fence; False removes a fence at the next
        commit. Raises ClientError."""
        check_instance("client", client, CommitlogClient, remedy="; an AsyncCommitlogClient has consumer()")
        self._client = client
        self._operations = Operations(client)
        self.name, self._fence = name, fence
        self._reader = f"consumer {gethostname()[:100]} {uuid4().hex[:12]}"
        try:
            self._cursor = self._operations.cursor(name)
        except NotFound as error:
            if error.code != "cursor-not-found":
                raise
            self._cursor = self._create(self._index_of(start))
        self._cursor = self._fenced(self._cursor)
        self.position = self._wanted = self._cursor.index  # _wanted: by the newest commit
        self._log_id: str | None = None  # of the log that was polled

    @property
    def _holder(self) -> str:
        """Name of this consumer. A fork makes two of it, and each of them has its own."""
        return f"{self._reader} {os.getpid()}"

    @property
    def committed(self) -> int:
        """Position of the cursor, as this consumer last set or read it."""
        return self._cursor.index

    def poll(self, *, wait_ms: int = FOLLOW_WAIT_MS, **query: Any) -> Page:
        """Return the next page, empty after `wait_ms` without a record; move the position, not the cursor.

        query: limit, max_bytes, key, encoding, as of `CommitlogClient.read`. Raises ClientError: NotFound
        (`index-trimmed`, with `begin_index` in its document) when retention has removed the position, and
        OtherLog when the log was deleted and created again.
        """
        page = self.next_page(wait_ms=wait_ms, **query)
        self.position = page.next_index
        return page

    def next_page(self, *, wait_ms: int = FOLLOW_WAIT_MS, **query: Any) -> Page:
        """As `poll`, without moving the position."""
        page = self._client.read(from_index=self.position, wait_ms=wait_ms, log_id=self._log_id, **query)
        self._log_id = page.log_id or self._log_id
        return page

    def records(self, **query: Any) -> Iterator[Mapping[str, Any]]:
        """Yield records without end; commit after each page, once all of its records were taken. Raises as
        `poll`, and ValueError for an end (`until_index`)."""
        check_endless(query)
        while True:
            page = self.poll(**query)
            yield from page.records
            if page.records:
                self.commit()

    def seek(self, index: int) -> None:
        """Continue at `index`; the cursor moves at the next commit."""
        check_whole("index", index, 0)
        self.position = index

    def commit(self, index: int | None = None) -> None:
        """Move the cursor to `index`, by default to the position.

        Raises ConditionFailed when another consumer has moved it.
        """
        if index is not None:
            check_whole("index", index, 0)
        target = self.position if index is None else index
        if target == self._cursor.index:
            return
        self._wanted = target
        self._cursor = self._move(target, self._cursor.version)

    def _create(self, index: int) -> Cursor:
        try:
            return self._put(index, "")
        except ConditionFailed:
            return self._newer("")  # created since it was not found

    def _fenced(self, found: Cursor) -> Cursor:
        """Return the cursor with the fence of this consumer, which an earlier one may not have had."""
        while self._fence and not found.fence:
            try:
                return self._put(found.index, found.version)
            except ConditionFailed:
                found = self._newer(found.version)
        return found

    def _move(self, index: int, version: str) -> Cursor:
        try:
            return self._put(index, version)
        except ConditionFailed:
            found = self._newer(version)
            if found.holder != self._holder:
                raise
            # This consumer moved it, and the answer was lost: of this move, or of an earlier one. A commit
            # that its caller gave up may also end after a later one, in a thread of an AsyncConsumer.
            is_done = found.index == index or self._wanted != index
            return found if is_done else self._move(index, found.version)

    def _newer(self, version: str) -> Cursor:
        """Return the cursor after the move that refused one from `version` on; "": from none.

        A master in classic mode refuses it at once, and shows the other move when slaves have it. Raises
        NoAnswer after give_up_s: the move may be of this consumer or of another one.
        """
        give_up_at = time.monotonic() + self._client.connection.give_up_s
        while True:
            try:
                found = self._operations.cursor(self.name)
                if found.version != version:
                    return found
            except NotFound as error:
                if version or error.code != "cursor-not-found":
                    raise
            if time.monotonic() > give_up_at:
                raise NoAnswer(f"the cursor {self.name} was moved, and no node shows the move yet", sent=True)
            time.sleep(FIRST_PAUSE_S)

    def _put(self, index: int, version: str) -> Cursor:
        return self._operations.move_cursor(
            self.name, index, fence=self._fence, if_match=version, holder=self._holder
        )

    def _index_of(self, start: int | str) -> int:
        if isinstance(start, int):
            check_whole("start", start, 0)
            return start
        if start not in ("earliest", "latest"):
            raise ValueError(f'start must be an index, "earliest" or "latest", got {start!r}')
        tail = self._client.tail()
        return int(tail["committed_index"]) + 1 if start == "latest" else max(0, int(tail["begin_index"]))
