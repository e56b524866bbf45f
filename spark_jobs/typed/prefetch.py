"""Prefetch: a thread makes the next item of an iterator while the caller works on the last one."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")


@contextmanager
def prefetch(items: Iterator[Item]) -> Iterator[Iterator[Item]]:
    """Yield an iterator over `items` that makes the next item in a thread while the caller uses the last one.

    After the block no thread uses `items`.
    """
    with ThreadPoolExecutor(1) as thread:

        def taken() -> Iterator[Item]:
            made = thread.submit(_next_of, items)
            while found := made.result():
                made = thread.submit(_next_of, items)
                yield found[0]

        yield taken()


def _next_of(items: Iterator[Item]) -> tuple[Item] | None:
    """Return the next item, None after the last one."""
    for item in items:
        return (item,)
    return None
