"""Promises of a classic group: acks that slaves really hold, and one history of all that was served."""

from app.log.contract import NO_INDEX
from app.node.replica.driver import LogDriver
from tests.simulation.world.promises import Violation
from tests.unit.ha.clients import Ledger

RECENT = 8  # acknowledged records that a read looks at


class ClassicChecker:
    """Chain values by index of everything acknowledged or read; each covers every record before it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._chains: dict[int, bytes] = {}
        self._recent: list[int] = []
        self.problem: str | None = None
        self.reads = 0

    @staticmethod
    def chain_at(driver: LogDriver, index: int) -> tuple[int, bytes] | None:
        """(last index, chain) of the batch that holds the index, None when the log does not hold it."""
        log = driver.log
        if log.end_index == NO_INDEX or not log.begin_index <= index <= log.end_index:
            return None
        batch = log.batch_at(index)
        return batch.last_index, batch.header.chain

    def acknowledged(self, master: LogDriver, index: int, holders: list[str], needed: int) -> None:
        """The master has acknowledged a synchronous append; holders: who has that very record durably."""
        if len(holders) < needed:
            self.problem = f"{index} was acknowledged, held by {holders} only, not {needed}"
        found = self.chain_at(master, index)
        if found is None:
            self.problem = f"{index} was acknowledged and its master does not hold it"
            return
        self._known(found, f"acknowledged at {master.node_id}")
        self._recent = [*self._recent[-RECENT + 1 :], index]

    def read(self, driver: LogDriver, index: int) -> None:
        """A confirmed read at this node returned everything up to `index`."""
        self.reads += 1
        if index == NO_INDEX:
            return
        found = self.chain_at(driver, index)
        if found is None:
            if index >= driver.log.begin_index:
                self.problem = f"{driver.node_id} read up to {index} and does not hold it"
            return
        self._known(found, f"read at {driver.node_id}")
        for each in self._recent:
            if driver.log.begin_index <= each <= index:
                self._compare(driver, each)

    def _known(self, found: tuple[int, bytes], what: str) -> None:
        index, chain = found
        if self._chains.setdefault(index, chain) != chain:
            self.problem = f"{what}: another record {index} than the one that was served before"

    def _compare(self, driver: LogDriver, index: int) -> None:
        found = self.chain_at(driver, index)
        if found is not None and self._chains.get(found[0], found[1]) != found[1]:
            self.problem = f"{driver.node_id} reads another record {index} than the acknowledged one"

    def agrees(self, driver: LogDriver, index: int) -> bool:
        """Return True if this log holds the record that was served at that index."""
        found = self.chain_at(driver, index)
        return found is not None and self._chains.get(found[0], found[1]) == found[1]

    def check_all(self, driver: LogDriver) -> None:
        """Every record that was served and is not trimmed here is as it was served. Raises Violation."""
        for index, chain in self._chains.items():
            if driver.log.begin_index <= index <= driver.log.end_index:
                found = self.chain_at(driver, index)
                if found != (index, chain):
                    raise Violation(f"{driver.node_id} holds another record {index} than was served")
