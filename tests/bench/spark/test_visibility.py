"""The latency, and what a true lag is, are computed right from appends and versions."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from tests.bench.spark.visibility import (
    Append,
    LagSeen,
    Load,
    Versions,
    beside,
    judge_lag,
    percentiles_ms,
    print_latency,
    processor_s,
    shares,
    until,
    watch_table,
)

# Ten records each at 1 s and 2 s; the table has the first ones from 1.5 s on, all from 3 s on.
APPENDS = [Append(1.0, 1.01, 9, 10), Append(2.0, 2.01, 20, 10)]
VERSIONS = Versions([1.5, 3.0], [9, 20])


def test_a_record_is_visible_with_the_first_version_that_holds_it(capsys: pytest.CaptureFixture[str]) -> None:
    load = Load("", 10.0, 10, list(APPENDS))
    latency = print_latency(load, VERSIONS, 0.0, 4.0)
    assert (latency["p50_ms"], latency["max_ms"]) == (990.0, 990.0)
    reported = json.loads(capsys.readouterr().out)
    assert (reported["records_per_s"], reported["append"]["max_ms"], reported["goals_met"]) == (
        5.0,
        10.0,
        True,
    )
    assert print_latency(load, VERSIONS, 0.0, 1.5)["p50_ms"] == 490.0
    assert percentiles_ms([value / 1_000 for value in range(100)])["p95_ms"] == 95.0


def test_a_displayed_lag_is_held_against_what_was_missing_then() -> None:
    true = [LagSeen(2.5, 2.51, 10, 500), LagSeen(3.5, 3.51, 0, 0), LagSeen(1.05, 1.06, 0, 0)]
    wrong = [LagSeen(2.5, 2.51, 0, 0), LagSeen(2.5, 2.51, 10, 1_500), LagSeen(3.5, 3.51, 10, 500)]
    reported = judge_lag([*true, *wrong], APPENDS, VERSIONS)
    assert (reported["looks"], reported["true"]) == (6, 3)


def test_versions_are_found_by_the_statistics_of_their_files(tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()

    def commit(version: int, *last_indexes: int) -> None:
        adds = [
            {"add": {"path": f"{last}", "size": 1, "stats": json.dumps({"maxValues": {"index": last}})}}
            for last in last_indexes
        ]
        (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, [{"commitInfo": {}}, *adds])))

    async def watched() -> Versions:
        versions = Versions()
        with beside(watch_table(tmp_path, versions)):
            await until(lambda: len(versions.last_index) == 2, 10.0, "the versions")
        return versions

    commit(0)
    commit(1, 9, 4)
    commit(2)
    commit(3, 20)
    versions = asyncio.run(watched())
    assert versions.last_index == [9, 20]
    assert versions.held_at(versions.seen_at_s[0]) == -1
    assert versions.visible_at_s(10) == versions.seen_at_s[1]


def test_processors_in_use_are_counted_by_name() -> None:
    used = processor_s({"bench": os.getpid()})
    assert 0 < used["bench"] < used["machine"]
    assert shares({"bench": 1.0, "machine": 10.0}, {"bench": 2.0, "machine": 13.0}, 2.0) == {
        "bench": 0.5,
        "all others": 1.0,
    }
