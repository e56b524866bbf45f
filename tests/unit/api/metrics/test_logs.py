"""Metrics of the replicas of a node: the distance of the Delta tables from the end of a log."""

from types import SimpleNamespace
from typing import Any

from app.api.metrics.logs import replica_metrics


def driver(log_name: str, fence_lag: int | None) -> Any:
    return SimpleNamespace(
        log_name=log_name,
        log=SimpleNamespace(begin_offset=0, end_offset=0),
        state=SimpleNamespace(key_count=0, producer_count=0, cursors={}, fence_lag=fence_lag),
        waiting_reads=0,
        dropped_messages=0,
    )


def test_a_log_has_one_lag_and_without_a_fencing_cursor_none() -> None:
    families = {each.name: each for each in replica_metrics([driver("a", 5), driver("b", None)], [])}
    samples = families["commitlog_fence_lag_records"].samples
    assert [(sample.labels, sample.value) for sample in samples] == [({"log": "a"}, 5.0)]
