"""Items that are made one ahead, in a thread."""

import threading
from collections.abc import Iterator

import pytest

from spark_jobs.typed.prefetch import prefetch


class Items:
    """Numbers whose making a test sees. made: how many; fails_at: the number that cannot be made."""

    def __init__(self, count: int, fails_at: int = -1) -> None:
        self.made = threading.Semaphore(0)
        self.count = 0
        self.threads: set[int] = set()
        self._numbers = range(count)
        self._fails_at = fails_at

    def __iter__(self) -> Iterator[int]:
        for number in self._numbers:
            if number == self._fails_at:
                raise OSError(number)
            self.count += 1
            self.threads.add(threading.get_ident())
            self.made.release()
            yield number


def test_one_item_is_made_while_the_caller_works_and_not_two() -> None:
    items = Items(5)
    with prefetch(iter(items)) as found:
        for number in found:
            if number < 4:
                for _ in range(2 if number == 0 else 1):
                    assert items.made.acquire(timeout=10)  # also the next one
                assert items.count == number + 2
        assert list(found) == []
    assert items.count == 5
    assert threading.get_ident() not in items.threads


def test_an_error_is_the_callers_and_after_the_block_nothing_runs() -> None:
    items, before = Items(5, fails_at=2), threading.active_count()
    with prefetch(iter(items)) as found:
        assert [next(found), next(found)] == [0, 1]
        with pytest.raises(OSError, match="2"):
            next(found)
    endless = Items(10**9)
    with pytest.raises(KeyError), prefetch(iter(endless)) as found:
        raise KeyError(next(found))
    assert threading.active_count() == before
    assert endless.count <= 2
