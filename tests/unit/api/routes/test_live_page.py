"""Rows and colours of the page `/ui/`."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.api.routes import live_page
from app.api.routes.live_page import _log_row
from app.log.contract import PeerStatus


@pytest.mark.parametrize(
    ("state", "lag_bytes", "lag_records"), [("TRANSFER", 300, 3), ("DISCONNECTED", None, None)]
)
def test_the_lag_of_a_log_is_not_known_while_a_slave_has_no_connection(
    state: str, lag_bytes: int | None, lag_records: int | None
) -> None:
    """Its watermark stays, but it may have lost its disk since."""
    peer = PeerStatus("n2", state, 6, 0, lag_bytes, heard_ms=None if lag_bytes else 900)
    log = SimpleNamespace(begin_index=0, end_index=9, begin_offset=0, end_offset=1_000)
    core = SimpleNamespace(peers=(peer,))
    driver = SimpleNamespace(log=log, term=1, committed_index=6, status=lambda: SimpleNamespace(core=core))
    hosted: Any = SimpleNamespace(
        name="a",
        settings=SimpleNamespace(replication="controller", replicas=("n1", "n2")),
        members=("n1", "n2"),
        leader_id="n1",
        leads=True,
        repairing=False,
        driver=driver,
    )
    broker: Any = SimpleNamespace(
        clock=SimpleNamespace(monotonic_ms=lambda: 1_000, now_ms=lambda: 1_000),
        settings=SimpleNamespace(raft=SimpleNamespace(election_timeout_ms=(500, 1_000))),
    )
    assert _log_row(broker, hosted)["lag_records"] == lag_records


def luminance(color: str) -> float:
    """Return the relative luminance of #rrggbb (WCAG 2)."""
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_texts_borders_and_lines_have_the_contrast_of_wcag_aa(scheme: int) -> None:
    folder = Path(live_page.__file__).with_name("live")
    style = (folder / "page.css").read_text("utf-8")
    pairs = re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", style)
    colors = {name: shades[scheme] for name, *shades in pairs}
    for name in ("ink", "soft", "good", "warn", "bad", "data"):
        for ground in ("card", "page"):
            assert contrast(colors[name], colors[ground]) >= 4.5, (name, ground)
    ((*borders,),) = re.findall(r"border: 1px solid light-dark\((#\w{6}), (#\w{6})\)", style)
    lines = re.findall(r"#\w{6}", (folder / "dom.js").read_text("utf-8").split("COLORS = ")[1].split("]")[0])
    assert len(lines) == 8
    for color in (borders[scheme], *lines):
        assert contrast(color, colors["card"]) >= 3, color
