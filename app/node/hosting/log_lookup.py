"""Finds a log by its name, for callers; refuses one that is not served here with the reason."""

import time
from typing import Final

from app.errors import InvalidRequest, LogDeleting, LogNotFound, LogUnsupported, NoLeader, QuorumTimeout
from app.names import check_log_name
from app.node.hosted_log import HostedLog
from app.node.hosted_logs import HostedLogs
from app.node.metadata.logs import MetadataLogs
from app.node.metadata.service import MetadataService
from app.node.request_waits import Waits

REMOVED: Final = "this node was removed from the cluster and does not know new logs; call a member"
_POLL_S: Final = 0.01


class LogLookup:
    """Owned by the event loop."""

    def __init__(
        self, hosted: HostedLogs, metadata: MetadataService, metadata_logs: MetadataLogs, waits: Waits
    ) -> None:
        self._hosted = hosted
        self._metadata = metadata
        self._metadata_logs = metadata_logs
        self._waits = waits

    def find(self, name: str, pointer: str = "/path/log", *, deleting: bool = False) -> HostedLog:
        """Return the log of that name.

        pointer: to the name in the request, for the error of one that no log can have. deleting: also a log
        that is being deleted, instead of LogDeleting.
        Raises InvalidRequest for a name that no log can have, LogNotFound, LogDeleting, LogUnsupported;
        NoLeader while this node does not know all logs: it has just started, could not open this one, or was
        removed.
        """
        hosted = self._hosted.get(name)
        if hosted is None:
            try:
                check_log_name(name)
            except ValueError as error:
                raise InvalidRequest((pointer, str(error))) from error
            if (unsupported := self._metadata_logs.unsupported.get(name)) is not None:
                raise LogUnsupported(name, unsupported.reason)
            if not self._metadata.is_current:
                raise NoLeader("this node does not know all logs yet")
            if self._metadata.hosted.removed:
                raise NoLeader(REMOVED)
            if name in self._metadata_logs.unopened:
                raise NoLeader("this node could not open the log, and tries again; its output has the reason")
            raise LogNotFound(name)
        if hosted.deleting and not deleting:
            raise LogDeleting(name)
        return hosted

    async def known(self, name: str, timeout_ms: int) -> HostedLog:
        """Return a log that was just created, once this node serves it.

        Raises LogDeleting, and QuorumTimeout if that takes longer, or the node stops: no refusal may claim
        that nothing was created.
        """
        deadline_s = time.monotonic() + timeout_ms / 1000
        while self._hosted.get(name) is None:
            if self._waits.stopping or time.monotonic() >= deadline_s:
                break
            await self._waits.pause(_POLL_S)
        try:
            return self.find(name)
        except (LogNotFound, LogUnsupported, NoLeader) as error:
            raise QuorumTimeout(None, f"the log was created, but not served here yet: {error}") from error
