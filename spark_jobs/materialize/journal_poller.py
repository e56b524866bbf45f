"""Changes of the journals of all logs of a job, found by one call of each node for all of them."""

import threading
import time
from collections.abc import Mapping

from spark_jobs.errors import SourceError
from spark_jobs.materialize.workers import Workers
from spark_jobs.source.log_reads import LogReads


class JournalPoller:
    """Next seqs of all journals, by node and log, asked when a caller wants them."""

    def __init__(self, client: LogReads, each_s: float) -> None:
        """client: of any log, for one thread at a time. each_s: least time between two rounds of calls."""
        self.each_s = each_s
        self._asked_at_s = float("-inf")
        self._client = client
        self._asking = threading.Lock()
        self._next_seqs: dict[str, dict[str, int]] = {}

    def ask_when_due(self, workers: Workers) -> None:
        """Let a worker ask every node, if that is due."""
        now_s = time.monotonic()
        if now_s >= self._asked_at_s + self.each_s and not self._asking.locked():
            self._asked_at_s = now_s
            workers.submit(self.ask)

    def ask(self) -> None:
        """Ask every node. One that does not answer keeps what it reported last."""
        with self._asking:
            self._ask()

    def _ask(self) -> None:
        try:
            nodes = self._client.nodes()
        except SourceError:
            return
        for node in nodes:
            try:
                found = self._client.ends(node.url)
                self._next_seqs[node.id] = {log: ends.events for log, ends in found.items()}
            except SourceError:
                continue

    def of(self, log: str) -> Mapping[str, int]:
        """Return the next seq by node, as last reported."""
        return {node: seqs[log] for node, seqs in list(self._next_seqs.items()) if log in seqs}
