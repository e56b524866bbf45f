"""Log lines about an address that cannot be reached."""

import logging
import os
import ssl
from typing import Final

logger = logging.getLogger(__name__)

UNREACHED_S: Final = 5.0  # a restart of the other node is shorter
REASONS_MAX: Final = 10  # whatever listens at the address chooses a part of some reasons


class Unreached:
    """One warning for each of the first REASONS_MAX reasons for which calls fail, once they have failed for
    UNREACHED_S seconds.

    A call that succeeds, or one to another address, begins again: see `reached`. Times are seconds of the
    event loop.
    """

    def __init__(self, port: str) -> None:
        """port: `peer`, `ha` or `rest`, for the log line."""
        self._port = port
        self._since_s: float | None = None
        self._reported: set[str] = set()

    def reached(self) -> None:
        """Begin again: the next failure is the first one."""
        self._since_s = None
        self._reported.clear()

    def failed(self, node: str | None, address: str, error: Exception, now_s: float) -> None:
        """A call of the node at `address` has failed. node: its id, None if it is not known."""
        if self._since_s is None:
            self._since_s = now_s
        reason = _reason(error)
        is_new = reason not in self._reported and len(self._reported) < REASONS_MAX
        if now_s - self._since_s >= UNREACHED_S and is_new:
            self._reported.add(reason)
            logger.warning(
                "a node cannot be reached",
                extra={"port": self._port, "peer": node, "address": address, "reason": reason},
            )


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):  # its number is OpenSSL's
        return str(error)
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    if isinstance(error, TimeoutError):
        return "no answer: the node or its machine is down, or a firewall drops the packets"
    return str(error) or type(error).__name__
