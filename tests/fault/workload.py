"""Clients that append and read while nodes die, and write down what they saw (history.py judges it)."""

import asyncio
import base64
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import aiohttp

from tests.fault.history import Operation, Outcome, Read, RecordsRead, TailRead

REQUEST_TIMEOUT_S = 8.0
PAUSE_AFTER_FAILURE_S = 0.02
BARRIER_TIMEOUT_S = 30.0
READ_BEHIND = 15  # records before the known end at which a read begins
READ_LIMIT = 20
MAY_REPEAT = (421, 429)  # refusals that are no fault of the client's


class Kind(Enum):
    """How an appender sends: what makes a repeat safe, or what condition it sets."""

    KEYED = "idempotency key"
    PLAIN = "once"
    PRODUCER = "producer and sequence"
    SEVERAL = "three records by idempotency key"
    MATCHED = "match_index"

    @property
    def repeats(self) -> bool:
        return self in (Kind.KEYED, Kind.PRODUCER, Kind.SEVERAL)


MIX = (
    Kind.KEYED,
    Kind.PLAIN,
    Kind.PRODUCER,
    Kind.SEVERAL,
    Kind.KEYED,
    Kind.PLAIN,
    Kind.PRODUCER,
    Kind.MATCHED,
)


@dataclass
class Workload:
    """Closed-loop clients against all nodes; those that can repeat safely do so until they know.

    urls: base URLs of the nodes; workers start at different ones and move on after a failure.
    kinds: one appender each. readers: of the tail, of records (linearizable, committed), in turns.
    timeout_ms: of each append. pause_s: between two appends of a worker. padding_bytes: added to each
    record, beyond its value.
    `surprises` are answers that no correct node gives these clients: they count as violations.
    """

    urls: Sequence[str]
    log: str = "default"
    kinds: Sequence[Kind] = MIX
    readers: int = 3
    timeout_ms: int = 5_000
    pause_s: float = 0.0
    padding_bytes: int = 0
    give_up_s: float = 20.0  # after `stop`
    name: str = "w"
    operations: list[Operation] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)
    acknowledged_at: list[float] = field(default_factory=list)  # ascending
    refusals: dict[str, int] = field(default_factory=dict)  # by the code of the problem
    known_end: int = -1
    stop_at: float | None = None
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Work until `stop`; then every worker finishes what it has begun, or gives it up as unknown."""
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            aiohttp.ClientSession(timeout=timeout, connector=connector) as session,
            asyncio.TaskGroup() as tasks,
        ):
            for worker, kind in enumerate(self.kinds):
                tasks.create_task(self.append_all(session, worker, kind))
            for worker in range(self.readers):
                tasks.create_task(self.read_all(session, worker))

    def stop(self) -> None:
        self.stop_at = time.monotonic()

    async def progress(self, appends: int) -> None:
        """Wait until so many more appends are acknowledged."""
        target = len(self.acknowledged_at) + appends
        while len(self.acknowledged_at) < target:
            self.moved.clear()
            await self.moved.wait()

    def longest_gap_s(self, since: float) -> float:
        """The longest time from `since` on without an acknowledged append."""
        start = len(self.acknowledged_at)
        while start > 0 and self.acknowledged_at[start - 1] > since:
            start -= 1
        moments = [since, *self.acknowledged_at[start:]]
        return max((b - a for a, b in itertools.pairwise(moments)), default=0.0)

    # --- appends -----------------------------------------------------------------------------------------

    async def append_all(self, session: aiohttp.ClientSession, worker: int, kind: Kind) -> None:
        node = worker
        for number in itertools.count():
            if self.stop_at is not None:
                return
            value = f"{self.name}{worker}-{number}"
            count = 3 if kind is Kind.SEVERAL else 1
            match_index = self.known_end + 1 if kind is Kind.MATCHED else None
            body = self.body_of(value, count)
            if kind is Kind.PRODUCER:
                body["producer"] = {"id": f"{self.name}{worker}", "epoch": 0, "sequence": number}
            if match_index is not None:
                body["match_index"] = match_index
            headers = {"Idempotency-Key": value} if kind in (Kind.KEYED, Kind.SEVERAL) else {}
            started = time.monotonic()
            outcome, index, doubt = Outcome.UNKNOWN, None, False
            while True:
                outcome, index = await self.append_once(session, self.url(node), body, headers, kind)
                doubt = doubt or outcome is Outcome.UNKNOWN
                if outcome is Outcome.ACKNOWLEDGED or not kind.repeats or self.gives_up():
                    break
                node += 1
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)
            ended = time.monotonic()
            if outcome is not Outcome.ACKNOWLEDGED:
                outcome = Outcome.UNKNOWN if doubt else outcome
                node += 1
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)
            self.operations.append(Operation(value, started, ended, outcome, index, count, match_index))
            if index is not None:
                self.known_end = max(self.known_end, index + count - 1)
            if outcome is Outcome.ACKNOWLEDGED:
                self.acknowledged_at.append(ended)
                self.moved.set()
            if self.pause_s:
                await asyncio.sleep(self.pause_s)

    def body_of(self, value: str, count: int) -> dict[str, Any]:
        values = [value, *(f"{value}+{ordinal}" for ordinal in range(1, count))]
        return {"records": [{"key": "k" * (1 + self.padding_bytes), "value": value} for value in values]}

    async def append_once(
        self,
        session: aiohttp.ClientSession,
        url: str,
        body: dict[str, Any],
        headers: dict[str, str],
        kind: Kind,
    ) -> tuple[Outcome, int | None]:
        place = f"{url}/v1/logs/{self.log}/records?timeout_ms={self.timeout_ms}"
        try:
            async with session.post(place, json=body, headers=headers) as answer:
                document = await answer.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError):
            return Outcome.UNKNOWN, None
        if answer.status == 200:
            return Outcome.ACKNOWLEDGED, document["first_index"]
        code = document["code"]
        self.refusals[code] = self.refusals.get(code, 0) + 1
        is_early = kind.repeats and code == "request-outstanding"  # the first one still waits at the leader
        if kind is Kind.MATCHED and code == "index-mismatch":
            self.known_end = document["next_index"] - 1
        elif 400 <= answer.status < 500 and answer.status not in MAY_REPEAT and not is_early:
            self.surprises.append(f"{kind.value}: {answer.status} {document}")
        outcome = Outcome(document["outcome"])
        return outcome, document["first_index"] if outcome is Outcome.APPLIED else None

    def gives_up(self) -> bool:
        return self.stop_at is not None and time.monotonic() - self.stop_at > self.give_up_s

    # --- reads -------------------------------------------------------------------------------------------

    async def read_all(self, session: aiohttp.ClientSession, worker: int) -> None:
        for number in itertools.count(worker):
            if self.stop_at is not None:
                return
            url = f"{self.url(number)}/v1/logs/{self.log}"
            read = await (
                self.read_tail(session, url)
                if worker % 3 == 0
                else self.read_records(session, url, worker % 3 == 1)
            )
            if read is not None:
                self.reads.append(read)
            await asyncio.sleep(PAUSE_AFTER_FAILURE_S)

    async def read_tail(self, session: aiohttp.ClientSession, url: str) -> TailRead | None:
        started = time.monotonic()
        document = await self.get(session, f"{url}/tail", {})
        if document is None:
            return None
        return TailRead(started, time.monotonic(), document["committed_index"])

    async def read_records(
        self, session: aiohttp.ClientSession, url: str, linearizable: bool
    ) -> RecordsRead | None:
        start = max(0, self.known_end - READ_BEHIND)
        consistency = "linearizable" if linearizable else "committed"
        query = {"from_index": str(start), "limit": str(READ_LIMIT), "consistency": consistency}
        started = time.monotonic()
        document = await self.get(session, f"{url}/records", query)
        if document is None:
            return None
        records = tuple((record["index"], value_of(record)) for record in document["records"])
        next_index, more = document["next_index"], document["has_more"]
        return RecordsRead(started, time.monotonic(), linearizable, start, next_index, more, records)

    async def get(
        self, session: aiohttp.ClientSession, place: str, query: dict[str, str]
    ) -> dict[str, Any] | None:
        """The answer to a read, None when there is none now."""
        try:
            async with session.get(place, params=query) as answer:
                document: dict[str, Any] = await answer.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError):
            return None
        return document if answer.status == 200 else None

    def url(self, number: int) -> str:
        return self.urls[number % len(self.urls)]


async def append_barrier(workload: Workload) -> int:
    """Append until it is acknowledged, and return the last index: nothing acknowledged lies behind it."""
    last = Workload(workload.urls, workload.log, kinds=[Kind.KEYED], readers=0, name=f"{workload.name}-end")
    task = asyncio.create_task(last.run())
    async with asyncio.timeout(BARRIER_TIMEOUT_S):
        await last.progress(1)
    last.stop()
    await task
    workload.operations += last.operations
    return last.known_end


async def read_log(
    url: str,
    log: str = "default",
    consistency: str = "linearizable",
    until_index: int | None = None,
    from_index: int = 0,
) -> list[tuple[int, str]]:
    """Every data record (index, value) that the node at `url` shows, from `from_index` to `until_index`."""
    records: list[tuple[int, str]] = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        next_index, more = from_index, True
        while more and (until_index is None or next_index < until_index):
            query = {"from_index": str(next_index), "limit": "20000", "consistency": consistency}
            if until_index is not None:
                query["until_index"] = str(until_index)
            async with session.get(f"{url}/v1/logs/{log}/records", params=query) as answer:
                answer.raise_for_status()
                document = await answer.json()
            records += [(record["index"], value_of(record)) for record in document["records"]]
            next_index, more = document["next_index"], document["has_more"]
    return records


def value_of(record: dict[str, str]) -> str:
    return record["value"] if "value" in record else base64.b64decode(record["value_base64"]).decode()
