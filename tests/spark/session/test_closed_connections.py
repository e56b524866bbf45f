"""A connection that Spark closes at the end of a query is not reported as an error."""

import socket
import socketserver
import threading

import pytest

from spark_jobs.session.spark_session import _expect_closed_connections


@pytest.mark.parametrize(("error", "is_reported"), [(EOFError, False), (ValueError, True)])
def test_only_a_closed_connection_is_left_out(
    error: type[Exception], is_reported: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            raise error

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        _expect_closed_connections(server)
        serving = threading.Thread(target=server.handle_request)
        serving.start()
        socket.create_connection(server.server_address[:2]).close()
        serving.join(30)
    assert (error.__name__ in capsys.readouterr().err) is is_reported
