"""Errors of the event loop whose only cause is that a client has disconnected."""

import asyncio
import logging
from typing import Any, Final

logger = logging.getLogger(__name__)

_BY_TLS: Final = "Fatal error on SSL protocol"
_ENDED: Final = "the handler is closed"  # in uvloop's error about a write to a connection that it has closed


def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Exception handler of a loop: log an error as the loop does by default.

    TLS of uvloop may write to a connection that has ended, and reports that as an error. The connection is
    lost, which the loop itself logs at debug level if a system call finds it out.
    """
    error = context.get("exception")
    if context.get("message") == _BY_TLS and isinstance(error, RuntimeError) and _ENDED in str(error):
        logger.debug("connection lost: %s", error)
    else:
        loop.default_exception_handler(context)
