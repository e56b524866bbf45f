"""Clients that append and read while nodes die, and write down what they saw (history.py judges it)."""

import asyncio
import base64
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp

from tests.fault.history import Operation, Outcome, TailRead

REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=8)
PAUSE_AFTER_FAILURE_S = 0.02


@dataclass
class Workload:
    """Closed-loop clients against all nodes. Half of the appenders retry by idempotency key until they know.

    urls: base URLs of the nodes; workers start at different ones and move on after a failure.
    """

    urls: Sequence[str]
    log: str = "default"
    appenders: int = 8
    readers: int = 2
    operations: list[Operation] = field(default_factory=list)
    reads: list[TailRead] = field(default_factory=list)
    stopping: bool = False
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Work until `stop`; then every worker finishes what it has begun."""
        async with aiohttp.ClientSession(timeout=REQUEST_TIMEOUT) as session, asyncio.TaskGroup() as tasks:
            for worker in range(self.appenders):
                tasks.create_task(self.append_all(session, worker, keyed=worker % 2 == 0))
            for worker in range(self.readers):
                tasks.create_task(self.read_all(session, worker))

    def stop(self) -> None:
        self.stopping = True

    async def progress(self, appends: int) -> None:
        """Wait until so many more appends are acknowledged."""
        target = len(self.acknowledged_at) + appends
        while len(self.acknowledged_at) < target:
            self.moved.clear()
            await self.moved.wait()

    @property
    def acknowledged_at(self) -> list[float]:
        return sorted(o.ended for o in self.operations if o.outcome is Outcome.ACKNOWLEDGED)

    def longest_gap_s(self) -> float:
        """The longest time without an acknowledged append."""
        return max((b - a for a, b in itertools.pairwise(self.acknowledged_at)), default=0.0)

    async def append_all(self, session: aiohttp.ClientSession, worker: int, *, keyed: bool) -> None:
        node = worker
        for number in itertools.count():
            if self.stopping:
                return
            value = f"w{worker}-{number}"
            started = time.monotonic()
            attempts = itertools.count() if keyed else range(1)
            outcome, index = Outcome.UNKNOWN, None
            for _ in attempts:
                outcome, index = await self.append_once(session, self.url(node), value, keyed=keyed)
                if outcome is Outcome.ACKNOWLEDGED:
                    break
                node += 1
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)
            self.operations.append(Operation(value, started, time.monotonic(), outcome, index))
            self.moved.set()

    async def append_once(
        self, session: aiohttp.ClientSession, url: str, value: str, *, keyed: bool
    ) -> tuple[Outcome, int | None]:
        headers = {"Idempotency-Key": value} if keyed else {}
        body = {"records": [{"key": value, "value": value}]}
        try:
            async with session.post(
                f"{url}/v1/logs/{self.log}/records", json=body, headers=headers
            ) as answer:
                document = await answer.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError):
            return Outcome.UNKNOWN, None
        if answer.status == 200:
            return Outcome.ACKNOWLEDGED, document["first_index"]
        return Outcome(document["outcome"]), None

    async def read_all(self, session: aiohttp.ClientSession, worker: int) -> None:
        for number in itertools.count(worker):
            if self.stopping:
                return
            started = time.monotonic()
            try:
                async with session.get(f"{self.url(number)}/v1/logs/{self.log}/tail") as answer:
                    document = await answer.json(content_type=None)
            except (aiohttp.ClientError, TimeoutError):
                document = {}
            if "committed_index" in document:
                self.reads.append(TailRead(started, time.monotonic(), document["committed_index"]))
            await asyncio.sleep(PAUSE_AFTER_FAILURE_S)

    def url(self, number: int) -> str:
        return self.urls[number % len(self.urls)]


async def read_log(
    url: str, log: str = "default", consistency: str = "linearizable"
) -> list[tuple[int, str]]:
    """Every data record (index, value) that the node at `url` shows."""
    records: list[tuple[int, str]] = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        next_index, more = 0, True
        while more:
            query = {"from_index": str(next_index), "limit": "20000", "consistency": consistency}
            async with session.get(f"{url}/v1/logs/{log}/records", params=query) as answer:
                answer.raise_for_status()
                document = await answer.json()
            records += [(record["index"], value_of(record)) for record in document["records"]]
            next_index, more = document["next_index"], document["has_more"]
    return records


def value_of(record: dict[str, str]) -> str:
    return record["value"] if "value" in record else base64.b64decode(record["value_base64"]).decode()
