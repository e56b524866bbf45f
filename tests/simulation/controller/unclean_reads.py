"""Linearizable reads in groups that allow unclean elections.

Each unclean election begins another history: the records of its master, and those that later masters confirm
until the next unclean election. A page must agree with one history that was the present one at some time
between the request and the answer. If that is the history of the request, the page also holds every record
that was acknowledged in it before.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from app.api.read.selection import Consistency
from app.errors import CommitlogError
from app.log.contract import NO_INDEX
from storage.log.commitlog import Commitlog
from tests.simulation.raft.reads import SHOWN_BEFORE, PageDone, Shown
from tests.simulation.world.world import World
from tests.support.committed import values_of


class Door(Protocol):
    """A node as a reader reaches it; nothing is answered while it is down."""

    def read_page(self, start_index: int, consistency: Consistency, done: PageDone) -> None: ...


@dataclass(slots=True)
class History:
    """Records since one unclean election. values: by index, None for a control record. Records that were
    trimmed before a master was seen with them are not in it."""

    values: dict[int, str | None] = field(default_factory=dict)
    committed_index: int = NO_INDEX
    acknowledged_index: int = NO_INDEX

    def take(self, log: Commitlog, committed_index: int) -> None:
        """Add what the present master has confirmed."""
        index = max(self.committed_index + 1, log.begin_index, 0)
        while index <= committed_index:
            batch = log.batch_at(index)
            known = [None] * batch.count if batch.is_control else values_of(batch)
            self.values.update(enumerate(known, batch.base_index))
            index = batch.next_index
        self.committed_index = max(self.committed_index, committed_index)

    def problem(self, page: Shown, acknowledged_index: int) -> str | None:
        """Return what a page shows or lacks against this history. acknowledged_index: at the request."""
        end_index, shown = page.next_index - 1, dict(page.records)
        for index in range(page.start_index, page.next_index):
            if index in self.values and shown.get(index) != self.values[index]:
                return f"shows {shown.get(index)} at {index}; {self.values[index]} is confirmed"
        if end_index > self.committed_index:
            return f"shows records up to {end_index}; {self.committed_index} is confirmed"
        if not page.is_full and end_index < acknowledged_index:
            return f"ends at {end_index}; {acknowledged_index} was acknowledged before the request"
        return None


class UncleanReads:
    """Every history by the epoch of its unclean election, and the pages of a step. `unclean_epoch` below is
    the present one of the committed metadata, 0 before the first unclean election."""

    def __init__(self) -> None:
        self.pages = 0
        self._histories: dict[int, History] = {}
        self._shown: list[tuple[Shown, int, int]] = []  # page, unclean epoch and acknowledged index before

    def history(self, unclean_epoch: int) -> History:
        return self._histories.setdefault(unclean_epoch, History())

    def reader(self, unclean_epoch: int) -> PageDone:
        """A linearizable read begins now."""
        asked = unclean_epoch, self.history(unclean_epoch).acknowledged_index

        def done(answer: Shown | CommitlogError) -> None:
            if isinstance(answer, Shown):
                self._shown.append((answer, *asked))

        return done

    def problem(self, unclean_epoch: int) -> str | None:
        """Return what is wrong with a page of this step, None when all are right."""
        shown, self._shown = self._shown, []
        self.pages += len(shown)
        for page, before, acknowledged_index in shown:
            problems = {
                epoch: history.problem(page, acknowledged_index if epoch == before else NO_INDEX)
                for epoch, history in self._histories.items()
                if before <= epoch <= max(before, unclean_epoch)
            }
            if None not in problems.values():
                return f"a linearizable read from {page.start_index}, by unclean epoch: {problems}"
        return None


class UncleanReader:
    """Reads at one node after another, at random, and never waits for the answer."""

    def __init__(
        self,
        world: World,
        doors: Sequence[Door],
        reads: UncleanReads,
        unclean_epoch: Callable[[], int],
        pause_us: tuple[int, int],
    ) -> None:
        self._world = world
        self._doors = doors
        self._reads = reads
        self._unclean_epoch = unclean_epoch
        self._pause_us = pause_us

    def start(self) -> None:
        self._world.after(self._world.between(self._pause_us), self._read)

    def _read(self) -> None:
        epoch = self._unclean_epoch()
        newest = self._reads.history(epoch).acknowledged_index
        start_index = max(0, newest - int(self._world.random.random() * SHOWN_BEFORE))
        door = self._world.random.choice(self._doors)
        door.read_page(start_index, Consistency.LINEARIZABLE, self._reads.reader(epoch))
        self.start()
