"""Nodes that refuse foreign names in the header Host, and those that do not."""

from pathlib import Path
from typing import Any

import pytest

from app.api.access.hosts import KnownHosts
from app.settings.file import parse

REST = "127.0.0.1:8101"
OPEN = {"allow_insecure_rest": True}


def hosts_of(listen: str, **security: Any) -> KnownHosts | None:
    nodes = [
        {"id": "n1", "listen": listen, "peer_listen": "127.0.0.1:9101", "data": "n1"},
        {
            "id": "n2",
            "listen": "127.0.0.1:8102",
            "url": "https://N2.Example:443/log",
            "peer_listen": "127.0.0.1:9102",
            "data": "n2",
        },
    ]
    return KnownHosts.of(parse({"cluster": {"id": "c"}, "nodes": nodes, "security": security}, "n1"))


def test_a_node_on_loopback_without_tokens_knows_the_names_of_the_nodes() -> None:
    hosts = hosts_of(REST)
    assert hosts is not None
    assert [hosts.have(name) for name in (b"n2.example", b"n3.example", b"127.0.0.1")] == [True, False, True]


@pytest.mark.parametrize(
    ("listen", "security"), [(REST, OPEN), (REST, {"allow_insecure": True}), ("0.0.0.0:8101", OPEN)]
)
def test_a_node_that_is_open_on_purpose_answers_under_every_name(
    listen: str, security: dict[str, Any]
) -> None:
    assert hosts_of(listen, **security) is None


def test_a_node_with_tokens_answers_under_every_name(tmp_path: Path) -> None:
    assert hosts_of(REST, tokens_file=str(tmp_path / "tokens")) is None
