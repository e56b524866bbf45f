"""Log lines about refused connections of nodes: a flood fills no disk, and hides no other reason."""

from types import SimpleNamespace

import pytest

from app.node.links import links as links_module
from app.node.links.handshake import Identity, Purpose
from app.node.links.links import Links
from app.pauses import REPORT_S


def test_a_new_reason_is_logged_although_many_connections_were_refused(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that calls twice a second with an expired certificate hid, after a day, all others for a day."""
    now_s = 1_000.0
    monkeypatch.setattr(links_module, "time", SimpleNamespace(monotonic=lambda: now_s))
    links = Links(Identity("c", "n1", Purpose.PEER))
    for _ in range(5_000):
        links.refuse("certificate", "expired", "10.0.0.3")
    links.refuse("proof", "a connection without a handshake", "10.0.0.9")
    now_s += REPORT_S
    for _ in range(2):
        links.refuse("certificate", "the certificate of n3 names n2", "10.0.0.3")
    lines = [(line.__dict__["reason"], line.__dict__["count"]) for line in caplog.records]
    assert lines == [
        ("expired", 1),
        ("a connection without a handshake", 1),
        ("the certificate of n3 names n2", 5_001),
    ]
    assert links.refused["certificate"] == 5_002
