"""Changes of all logs, found by one call of a node for all of them.

The ends are hints: which log to read, and when. What is read is confirmed by the read itself.
"""

import threading
import time
from collections.abc import Mapping, Sequence

from spark_jobs.errors import SourceError
from spark_jobs.source.answers import LogEnds
from spark_jobs.source.log_reads import LogReads

POLL_INTERVAL_S = 0.2
IDLE_POLL_INTERVAL_S = 0.5  # when nothing has changed for IDLE_AFTER_S
IDLE_AFTER_S = 5.0
PAUSE_FACTOR, LONGEST_PAUSE_S = 20, 1.0  # the pause after a slow call is this many times as long as the call


class LogEndsPoller:
    """Ends of all logs as the endpoints report them, each asked by a thread of its own: one that hangs delays
    no other."""

    def __init__(
        self,
        endpoints: Sequence[str],
        token: str | None,
        changed: threading.Event,
        *,
        on_demand: bool = False,
    ) -> None:
        """changed: set whenever an end has changed. on_demand: only the first call and those of `ask` are
        made."""
        self._endpoints = endpoints
        self._token = token
        self._on_demand = on_demand
        self._due = {endpoint: threading.Event() for endpoint in endpoints}
        self._has_ended = threading.Condition()  # a call
        self._seen: dict[str, tuple[float, Mapping[str, LogEnds]]] = {}  # by endpoint, with the time
        self._changed = changed
        self._stopping = threading.Event()

    def start(self) -> None:
        for endpoint in self._endpoints:
            threading.Thread(target=self._ask, args=(endpoint,), daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()
        for due in self._due.values():
            due.set()

    def ask(self, within_s: float) -> bool:
        """Ask now, and wait for the endpoints that have answered their last call, `within_s` at most. Return
        whether every endpoint has answered."""
        now_s = time.monotonic()
        for due in self._due.values():
            due.set()
        with self._has_ended:
            self._has_ended.wait_for(
                lambda: all(asked_at_s >= now_s for asked_at_s, _ in list(self._seen.values())), within_s
            )
            answered = [asked_at_s for asked_at_s, _ in self._seen.values() if asked_at_s >= now_s]
        return len(answered) == len(self._endpoints)

    @property
    def has_answer(self) -> bool:
        """True if an endpoint has answered its last call."""
        return bool(self._seen)

    def known(self) -> dict[str, LogEnds]:
        """Return the furthest end of every log that an endpoint reports."""
        found: dict[str, LogEnds] = {}
        for _, ends in list(self._seen.values()):
            for log, each in ends.items():
                held = found.get(log)
                if held is None or (each.term, each.next_index) > (held.term, held.next_index):
                    found[log] = each
        return found

    def ends(self, log: str, after_s: float = float("-inf")) -> LogEnds | None:
        """Return the furthest end of a log in answers to calls made after a time; None for none."""
        found = [ends[log] for at_s, ends in list(self._seen.values()) if at_s > after_s and log in ends]
        return max(found, key=lambda ends: (ends.term, ends.next_index), default=None)

    def _ask(self, endpoint: str) -> None:
        client, due = LogReads([endpoint], "", self._token), self._due[endpoint]
        changed_at_s = time.monotonic()
        last: Mapping[str, LogEnds] = {}
        while not self._stopping.is_set():
            due.clear()
            asked_at_s = time.monotonic()
            try:
                ends: Mapping[str, LogEnds] | None = client.ends(endpoint)
            except SourceError:
                ends = None
            answered_at_s = time.monotonic()
            with self._has_ended:
                if ends is None:
                    self._seen.pop(endpoint, None)
                else:
                    self._seen[endpoint] = (asked_at_s, ends)
                self._has_ended.notify_all()
            if ends is not None and ends != last:
                last, changed_at_s = ends, answered_at_s
                self._changed.set()
            if self._stopping.is_set():
                break
            idle = ends is None or answered_at_s - changed_at_s > IDLE_AFTER_S
            pause_s = IDLE_POLL_INTERVAL_S if idle else POLL_INTERVAL_S
            took_s = answered_at_s - asked_at_s
            pause_s = max(pause_s, min(LONGEST_PAUSE_S, PAUSE_FACTOR * took_s))
            due.wait(None if self._on_demand and ends is not None else pause_s)
        client.close()
