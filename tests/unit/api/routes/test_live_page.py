"""Rows of the page `/ui/`."""

from types import SimpleNamespace
from typing import Any

import pytest

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
