"""Nodes that the active controller hears: a frozen process keeps its connections open, and sends nothing."""

from collections.abc import Iterable


class HeardNodes:
    """The nodes in the answers to this node's heartbeats. A node that no answer has listed is not judged,
    because it may hold no replica that it reports."""

    def __init__(self, timeout_ms: int) -> None:
        """timeout_ms: after which a node that is listed no longer, or an answer, is out of date."""
        self._timeout_ms = timeout_ms
        self._answered_ms: int | None = None
        self._listed_ms: dict[str, int] = {}  # node -> last answer that listed it

    def answered(self, nodes: Iterable[str], now_ms: int) -> None:
        """Take an answer of the active controller. nodes: those that it hears."""
        self._answered_ms = now_ms
        self._listed_ms.update(dict.fromkeys(nodes, now_ms))

    def is_silent(self, node: str, now_ms: int) -> bool:
        """Return True if the controllers have heard the node before, and recent answers do not list it."""
        listed_ms, answered_ms = self._listed_ms.get(node), self._answered_ms
        if listed_ms is None or answered_ms is None or now_ms - answered_ms > self._timeout_ms:
            return False
        return now_ms - listed_ms > self._timeout_ms
