"""Times at which a master records the watermarks of its replicas."""

from types import SimpleNamespace
from typing import Any

import pytest

from app.ha.config import HaConfig
from app.ha.watermark_reports import WatermarkReports
from app.log.contract import Role

CONFIG = HaConfig()
LONG_MS, SHORT_MS = CONFIG.ha_watermarks_interval_ms, CONFIG.ha_watermarks_moving_interval_ms


@pytest.mark.rule("D-22")
def test_watermarks_are_recorded_at_most_each_short_interval_while_they_move_else_each_long_one() -> None:
    recorded: list[tuple[int, bool]] = []
    marks = {"n1": 1, "n2": 0}
    member = SimpleNamespace(role=Role.MASTER, committed_index=0, term=3)

    def record(term: int, event: Any, *, is_repeat: bool) -> None:
        assert (term, event.role, event.end_index) == (3, "master", 9)
        assert (event.committed_index, event.peers) == (member.committed_index, marks)
        recorded.append((now_ms, is_repeat))

    log, outbox = SimpleNamespace(begin_index=0, end_index=9), SimpleNamespace(record=record)
    parts: Any = SimpleNamespace(member=member, log=log, outbox=outbox, config=CONFIG)
    now_ms = 50
    reports = WatermarkReports(parts, lambda: marks, now_ms)
    reports.record(now_ms)
    begin_ms = now_ms
    for now_ms in range(begin_ms, begin_ms + 2 * LONG_MS + 1):
        reports.tick(now_ms)
    assert recorded == [(50, False), (50 + LONG_MS, True), (50 + 2 * LONG_MS, True)]
    recorded.clear()
    begin_ms = now_ms
    for now_ms in range(begin_ms + 1, begin_ms + 3 * SHORT_MS):
        marks["n2"] += now_ms % 2
        member.committed_index += not now_ms % 2
        reports.tick(now_ms)
    assert recorded == [(begin_ms + SHORT_MS, True), (begin_ms + 2 * SHORT_MS, True)]
