"""Raw sockets at the REST port of a node with tokens: what one client sends does not harm the others."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, eventually, serving

ADMIN, READER = "all write\n", "reader read name=reader\n"
RECORDS = "/v1/logs/default/records"


class GuardedCluster(Cluster):
    """One node with a tokens file."""

    def __init__(self, folder: Path) -> None:
        self.tokens = folder / "tokens"
        self.tokens.write_text(ADMIN + READER)
        super().__init__(folder, 1, sections={"security": {"tokens_file": self.tokens}})
        self._client.headers["Authorization"] = "Bearer all"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedCluster]:
    with serving(GuardedCluster(tmp_path_factory.mktemp("hostile"))) as cluster:
        yield cluster


def head(method: str, target: str, *lines: str) -> bytes:
    return "\r\n".join(
        (f"{method} {target} HTTP/1.1", "Host: x", "Connection: close", *lines, "", "")
    ).encode()


@pytest.mark.parametrize("path", ["/healthz", "/problems/internal", RECORDS])
def test_a_query_of_many_parameters_is_refused_at_once(node: GuardedCluster, path: str) -> None:
    """Each unknown parameter took time on the loop and 50 bytes of the answer, also without a token."""
    query = "&".join(f"a{number}" for number in range(9_000))
    answer = node.exchange(head("GET", f"{path}?{query}", "Authorization: Bearer all"))
    assert answer.startswith(b"HTTP/1.1 422 ")
    assert b"must have at most 100 parameters, got 9000" in answer
    assert len(answer) < 1_000
    few = "&".join(f"a{number}" for number in range(100))
    assert node.exchange(head("GET", f"/healthz?{few}")).count(b'"pointer"') == 100


@pytest.mark.parametrize("line", ["Accept: application/json", "Commitlog-Min-Index: 0"])
def test_a_poll_of_a_removed_token_gets_nothing(node: GuardedCluster, line: str) -> None:
    """In the lane and on the plain route: what is appended after the removal is not for this token."""
    next_index = node.get("n1", "/v1/logs/default/tail").json()["next_index"]
    poll = head(
        "GET", f"{RECORDS}?from_index={next_index}&wait_ms=30000", "Authorization: Bearer reader", line
    )
    try:
        with socket.create_connection(("127.0.0.1", node.rest_ports["n1"]), timeout=30) as end:
            end.sendall(poll)
            waiting = head(
                "GET", f"{RECORDS}?from_index={next_index}&wait_ms=1", "Authorization: Bearer reader"
            )
            assert node.exchange(waiting).startswith(b"HTTP/1.1 200 ")  # the poll before it has begun
            node.tokens.write_text(ADMIN)
            eventually(
                lambda: node.exchange(waiting).startswith(b"HTTP/1.1 401 "), what="the token is removed"
            )
            assert node.append("n1", "not for the reader").status_code == 200
            answer = b""
            while part := end.recv(65_536):
                answer += part
        assert answer.startswith(b"HTTP/1.1 401 "), answer
        assert b"www-authenticate" in answer.lower()
        assert b"not for the reader" not in answer
    finally:
        node.tokens.write_text(ADMIN + READER)
        eventually(lambda: not node.exchange(waiting).startswith(b"HTTP/1.1 401 "), what="the token is back")


@pytest.mark.parametrize("path", ["/docs", "/problems/internal", "/ui", "/ui/main.js"])
def test_no_other_website_shows_a_page_in_a_frame(node: GuardedCluster, path: str) -> None:
    """A click on the frame would be a click on the page, with the reader's position and rights."""
    headers = node.get("n1", path).headers
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "base-uri 'none'" in headers["content-security-policy"]
