"""Nodes that the active controller hears: a frozen process keeps its connections open, and sends nothing."""

from collections.abc import Iterable


class HeardNodes:
    """The nodes in the answers to this node's heartbeats. A node that need not report, and that no answer
    has listed, is not judged."""

    def __init__(self, timeout_ms: int, reporting: Iterable[str]) -> None:
        """timeout_ms: after which a node that is listed no longer, or an answer, is out of date. reporting:
        nodes that send heartbeats. After a time without an answer, a node that none lists from then on counts
        as listed by the first one."""
        self._timeout_ms = timeout_ms
        self._reporting = tuple(reporting)
        self._answered_ms: int | None = None
        self._listed_ms: dict[str, int] = {}  # node -> last answer that listed it

    def answered(self, nodes: Iterable[str], now_ms: int) -> None:
        """Take an answer of the active controller. nodes: those that it hears."""
        if self._answered_ms is None or now_ms - self._answered_ms > self._timeout_ms:
            # A new active controller has not heard every node yet.
            self._listed_ms.update(dict.fromkeys((*self._reporting, *self._listed_ms), now_ms))
        self._answered_ms = now_ms
        self._listed_ms.update(dict.fromkeys(nodes, now_ms))

    def is_silent(self, node: str, now_ms: int) -> bool:
        """Return True if recent answers do not list a node that one has listed, or that has to report."""
        listed_ms, answered_ms = self._listed_ms.get(node), self._answered_ms
        if listed_ms is None or answered_ms is None or now_ms - answered_ms > self._timeout_ms:
            return False
        return now_ms - listed_ms > self._timeout_ms
