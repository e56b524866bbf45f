"""Coroutines of tests: run with a time limit, and waits for a condition in this process."""

import asyncio
from collections.abc import Awaitable, Callable


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test of at most 20 seconds. Raises TimeoutError."""

    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(bounded())


async def until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Wait for a condition in this process. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # conditions of any kind
            await asyncio.sleep(0.005)
