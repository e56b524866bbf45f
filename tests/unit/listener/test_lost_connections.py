"""Log lines of the loop of a node about errors in connections."""

import asyncio
import logging

import pytest

from app.serve import new_event_loop

LOST = "unable to perform operation on <TCPTransport closed=True reading=False 0x1>; the handler is closed"


@pytest.mark.parametrize(
    ("message", "error", "logged"),
    [
        ("Fatal error on SSL protocol", RuntimeError(LOST), ("app.listener.lost_connections", "DEBUG")),
        ("Fatal error on SSL protocol", RuntimeError("another"), ("asyncio", "ERROR")),
        ("Fatal error on SSL protocol", ValueError(LOST), ("asyncio", "ERROR")),
        ("Exception in callback f()", RuntimeError(LOST), ("asyncio", "ERROR")),
        ("Task was destroyed but it is pending!", None, ("asyncio", "ERROR")),
    ],
)
def test_a_lost_tls_connection_is_no_error_and_all_else_is(
    message: str, error: Exception | None, logged: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Operators saw the trace of an error, and only a client had gone."""
    caplog.set_level(logging.DEBUG)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        context = {"message": message} | ({} if error is None else {"exception": error})
        runner.get_loop().call_exception_handler(context)
    found = [(line.name, line.levelname) for line in caplog.records if line.name != "uvloop"]
    assert found == [logged]
