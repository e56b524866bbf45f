"""Changes of all logs of a job, found by one call of a node for all of them.

The ends are hints: which log to read, and when. What is read, and how far, is confirmed by the read itself
(source/data_source.py).
"""

import threading
import time
from collections.abc import Mapping, Sequence

from spark_jobs.errors import SourceError
from spark_jobs.materialize.workers import Workers
from spark_jobs.source.log_reads import LogEnds, LogReads

ASK_EACH_S = 0.2
ASK_EACH_IDLE_S = 0.5  # when nothing has changed for IDLE_AFTER_S
IDLE_AFTER_S = 5.0
SHARE, LONGEST_PAUSE_S = 20, 1.0  # a call that takes long is followed by a pause of SHARE times as much


class LogNews:
    """Ends of all logs as the endpoints report them, each asked by a thread of its own: one that hangs delays
    no other."""

    def __init__(self, endpoints: Sequence[str], token: str | None, changed: threading.Event) -> None:
        """changed: set whenever an end has changed."""
        self._endpoints = endpoints
        self._token = token
        self._seen: dict[str, tuple[float, Mapping[str, LogEnds]]] = {}  # by endpoint, with the time
        self._changed = changed
        self._stopping = threading.Event()

    def start(self) -> None:
        for endpoint in self._endpoints:
            threading.Thread(target=self._ask, args=(endpoint,), daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()

    def ends(self, log: str, after_s: float = float("-inf")) -> LogEnds | None:
        """Return the furthest end of a log in answers to calls made after a time; None for none."""
        found = [ends[log] for at_s, ends in list(self._seen.values()) if at_s > after_s and log in ends]
        return max(found, key=lambda ends: (ends.term, ends.next_index), default=None)

    def _ask(self, endpoint: str) -> None:
        client = LogReads([endpoint], "", self._token)
        changed_at_s = time.monotonic()
        last: Mapping[str, LogEnds] = {}
        while not self._stopping.is_set():
            asked_at_s = time.monotonic()
            try:
                ends: Mapping[str, LogEnds] = client.ends(endpoint)
            except SourceError:
                self._seen.pop(endpoint, None)
                self._stopping.wait(ASK_EACH_IDLE_S)
                continue
            answered_at_s = time.monotonic()
            self._seen[endpoint] = (asked_at_s, ends)
            if ends != last:
                last, changed_at_s = ends, answered_at_s
                self._changed.set()
            idle = answered_at_s - changed_at_s > IDLE_AFTER_S
            pause_s = ASK_EACH_IDLE_S if idle else ASK_EACH_S
            took_s = answered_at_s - asked_at_s
            self._stopping.wait(max(pause_s, min(LONGEST_PAUSE_S, SHARE * took_s)))
        client.close()


class JournalNews:
    """Next seqs of all journals, by log and node, asked when a caller wants them."""

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
                for log, ends in self._client.ends(node.url).items():
                    self._next_seqs.setdefault(log, {})[node.id] = ends.events
            except SourceError:
                continue

    def of(self, log: str) -> Mapping[str, int]:
        """Return the next seq by node, as last reported."""
        return self._next_seqs.get(log, {})
