"""Registry of the logs that a node knows."""

from collections.abc import Iterator

from app.controller.metadata import CONTROLLER_LOG
from app.node.hosted_log import HostedLog


class HostedLogs:
    """Owned by the event loop. `controller`, the log of the metadata, is set before any other log is known.

    by_name: all but that log. by_id: all.
    """

    controller: HostedLog

    def __init__(self) -> None:
        self.by_name: dict[str, HostedLog] = {}
        self.by_id: dict[int, HostedLog] = {}

    def __iter__(self) -> Iterator[HostedLog]:
        """The log of the metadata first; logs that are added or forgotten meanwhile change nothing."""
        return iter([self.controller, *self.by_name.values()])

    @property
    def open_count(self) -> int:
        """Number of logs whose files are open. May be read in any thread."""
        return sum(hosted.journal is not None for hosted in list(self.by_id.values()))

    def get(self, name: str) -> HostedLog | None:
        """Return the log of that name, the one of the metadata included; None: it is not known."""
        return self.controller if name == CONTROLLER_LOG else self.by_name.get(name)

    def add(self, hosted: HostedLog) -> None:
        """Register a log."""
        self.by_id[hosted.log_id] = hosted
        if hosted.name == CONTROLLER_LOG:
            self.controller = hosted
        else:
            self.by_name[hosted.name] = hosted

    def forget(self, hosted: HostedLog) -> None:
        """Remove a log from the registry."""
        self.by_name.pop(hosted.name, None)
        self.by_id.pop(hosted.log_id, None)

    def have_member(self, node_id: str) -> bool:
        """Return whether a node is a member of any log."""
        return any(node_id in hosted.members for hosted in self)
