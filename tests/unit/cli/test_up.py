"""`commitlog up`: what it checks before it starts a cluster."""

import pytest

from app.cli import up
from app.cli.context import CommandFailed


@pytest.mark.parametrize(
    ("taken", "sentence"),
    [
        ((8101,), "port 8101 is in use on 127.0.0.1: stop what uses it, or choose another --port"),
        (
            (8101, 9101),
            "ports 8101, 9101 are in use on 127.0.0.1: stop what uses them, or choose another --port",
        ),
    ],
)
def test_taken_ports_are_named(
    taken: tuple[int, ...], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up, "port_is_free", lambda port: port not in taken)
    with pytest.raises(CommandFailed) as failed:
        up.check_ports(8101, 3)
    assert failed.value.message == sentence
