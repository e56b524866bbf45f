"""The bench computes its figures correctly, and reports missing programs."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.bench import endurance, table
from tests.bench.compare import ROWS, clusters, summaries
from tests.bench.kafka import maven, rates
from tests.bench.kafka.__main__ import KAFKA_WAYS, compare
from tests.bench.kafka.brokers import Brokers
from tests.bench.spark.backlog import MIB, Memory, MicroBatch, micro_batches, verdict
from tests.bench.spark.log_to_delta import letters
from tests.bench.systems import memory
from tests.support.programs import READER_GONE


def test_micro_batches_are_counted_by_a_tables_commits(tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    for version, (at_ms, rows) in enumerate([(1_000, None), (3_000, "100"), (3_500, None), (4_000, "50")]):
        info = {"timestamp": at_ms, **({"operationMetrics": {"numOutputRows": rows}} if rows else {})}
        lines = [{"protocol": {}}, {"commitInfo": info}]
        (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, lines)))
    assert micro_batches(tmp_path) == [MicroBatch(100, 2.0), MicroBatch(50, 0.5)]


def test_the_verdict_compares_the_thirds() -> None:
    full = [MicroBatch(100, seconds) for seconds in (2.0, 1.0, 1.0, 1.0, 1.0, 4.0)]
    batches = [MicroBatch(100, 9.0), *full, MicroBatch(1, 1.0)]  # cold, and what was left
    memory = [Memory(at, at * MIB, MIB, MIB) for at in range(9)]
    result = verdict(batches, memory)
    assert result["thirds_rows_per_s"] == [67, 100, 40]
    assert result["last_third_to_first"] == 0.6
    assert result["thirds_peak_mib"] == [4, 7, 10]
    assert (result["peak_mib"], result["peak_jvm_mib"], result["rows_per_s"]) == (10, 8, 35)


def test_the_ratios_are_to_the_best_of_kafkas_ways(capsys: pytest.CaptureFixture[str]) -> None:
    def passes(way: str, at: bool, tasks: int, java: str, *rates: int) -> list[dict[str, object]]:
        options = {"way": way, "in_place": at, "tasks": tasks, "java": java}
        sessions = ("cold", "warm", "warm", "warm")
        return [
            {**options, "session": session, "rows_per_s": rate}
            for session, rate in zip(sessions, rates, strict=True)
        ]

    rates = ((12, 18, 18, 18), (10, 20, 22, 90), (24, 30, 44, 50))
    kafka = [
        row
        for way, found in zip(KAFKA_WAYS, rates, strict=True)
        for row in passes("kafka", False, *way, *found)
    ]
    ours = [
        row
        for way in ("source", "job")
        for at in (False, True)
        for row in passes(way, at, 2, "", 6, 33, 30, 36)
    ]
    compare(kafka, ours)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [
        (line["session"], line["kafka_rows_per_s"], line["ratio"], line["ratio_on_our_options"])
        for line in lines
    ] == [*[("cold", 12, 0.5, 0.25)] * 4, *[("warm", 22, 1.5, 0.75)] * 4]


def test_the_last_minutes_are_compared_with_the_first() -> None:
    rates = [100, 100, 1, *[50] * 25, 90, 80]
    found = [
        {"records_per_s": rate, "servers_us": 1e3 / rate, "private_mib": [100, 100 + minute]}
        for minute, rate in enumerate(rates)
    ]
    assert endurance.compared(found) == {"rate_ratio": 0.8, "cpu_growth": 1.25, "memory_growth": 1.27}


def test_without_maven_the_comparison_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(maven.MavenFailed, match="no `mvn` on PATH"):
        maven.jars_of(Path("brokers.xml"))


def test_no_two_records_of_the_load_are_alike() -> None:
    rows = pa.ipc.open_stream(letters(np.random.default_rng(1), 500, 30)).read_all()
    values = rows["value"].to_pylist()
    assert len({*values}) == 500
    assert {len(value) for value in values} == {30}
    assert b"".join(values).isalpha()
    assert b"".join(values).isupper()


def test_a_comparison_gives_medians_ranges_and_ratios() -> None:
    def turns(*rates: float) -> list[dict[str, float]]:
        return [{"records_per_s": rate, "p50_ms": 1.0, "cpu_us": 2.0} for rate in rates]

    found = summaries({("row", "commitlog"): turns(30, 10, 20), ("row", "peer 1"): turns(5, 40, 10)})
    assert found["row"]["commitlog"]["records_per_s"] == 20
    assert found["row"]["peer 1"]["range"] == [5, 40]
    assert found["row"]["ratio"] == {"peer 1": 2.0}


def test_medians_of_an_even_number_of_turns_are_rounded() -> None:
    costs = dict.fromkeys(("leader_us", "follower_us", "cpu_us", "client_us"), 1.0)
    turns = [{"records_per_s": 10.0, "p50_ms": p50_ms, **costs} for p50_ms in (0.642, 0.6461)]
    lines = table.appends_table(summaries({("row", "commitlog"): turns}))
    assert lines[2] == "| row | 10 (10 to 10) | 0.644 | 1.0 | 1.0 | 1.0 |"


@pytest.mark.parametrize("module", ["tests.bench", "tests.bench.table"])
def test_help_describes_a_benchmark_and_starts_none(module: str) -> None:
    command = [sys.executable, "-m", module, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"python -m {module} [" in done.stdout


def test_an_unknown_benchmark_is_refused() -> None:
    command = [sys.executable, "-m", "tests.bench", "tabel"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "NAME must be one of storage_bench" in done.stderr


def test_a_program_whose_reader_has_gone_cleans_up_and_ends_without_a_traceback() -> None:
    program = (
        "import sys\nfrom tests.bench.systems.local_cluster import print_figure\n"
        "from tests.support.programs import run_program\n"
        "def main():\n"
        "    try:\n        while True: print_figure(row=1)\n"
        "    finally:\n        sys.stderr.write('cleaned up')\n"
        "run_program(main)"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.readline()
        running.stdout.close()
        reported = running.stderr.read()
    assert (running.returncode, reported) == (READER_GONE, b"cleaned up")


def test_the_rows_of_one_setup_share_a_cluster() -> None:
    groups = clusters(ROWS)
    assert sorted(row.name for group in groups for row in group) == sorted(row.name for row in ROWS)
    assert len({group[0].setup for group in groups}) == len(groups)
    assert all(row.setup is group[0].setup for group in groups for row in group)


def test_the_page_cache_takes_the_memory_that_has_become_free(monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([memory.KEPT_FREE_MIB + 2, memory.KEPT_FREE_MIB - 1, memory.KEPT_FREE_MIB + 1])
    monkeypatch.setattr(memory, "free_mib", lambda: next(free))
    sizes = []
    with memory.filled_page_cache() as cache:
        for _ in range(3):
            sizes.append(cache.size_mib)
            if len(sizes) < 3:
                cache.fill()
    assert sizes == [2, 2, 3]


@pytest.mark.parametrize(("of", "ratio"), [("records_per_s", 2.0), ("p50_ms", 0.5)])
def test_a_ratio_to_kafka_is_above_1_where_this_project_is_better(of: str, ratio: float) -> None:
    figures = {"a": [{of: value} for value in (10.0, 40.0, 20.0)], "kafka a": [{of: 10.0}]}
    found = rates.summary(figures, "a", "kafka a", of)
    assert found == {
        "a": {of: 20.0, "range": [10.0, 40.0]},
        "kafka a": {of: 10.0, "range": [10.0, 10.0]},
        "ratio": ratio,
    }


def test_the_rate_of_kafkas_consumer_is_without_the_time_to_join(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = (
        "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, "
        "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec\n"
        "22:00:00:000, 22:00:04:000, 97.6562, 24.4, 100000, 25000.0, 3000, 1000, 97.6, 100000.0\n"
    )
    brokers = Brokers(tmp_path, Path("java"), [])
    monkeypatch.setattr(brokers, "_tool", lambda *_: lines)
    assert brokers.consume("topic", 100_000) == 100_000.0


def test_the_table_replaces_only_what_is_between_its_marks(tmp_path: Path) -> None:
    ours = {
        "records_per_s": 1_000,
        "range": [900, 1_100],
        "p50_ms": 1.5,
        "leader_us": 9.0,
        "follower_us": 3.0,
        "client_us": 4.0,
    }
    peer = {"records_per_s": 500, "range": [400, 600], "p50_ms": 2.0, "cpu_us": 7.0}
    found = {
        "a": {"commitlog": ours, "etcd 3": peer, "ratio": {"etcd 3": 2.0}},
        "b": {"commitlog": ours, "ratio": {}},
    }
    lines = table.appends_table(found)
    assert {line.count("|") for line in lines} == {lines[0].count("|")}
    assert lines[2].endswith("| 9.0 | 3.0 | 4.0 | 500 (400 to 600) | 2.0 | 7.0 | 2.0 |")
    assert lines[3].endswith("| - | - | - | - |")
    page = tmp_path / "page.md"
    page.write_text(f"above\n{table.BEGIN}\nold\n{table.END}\nbelow\n")
    for _ in range(2):
        table.write(page, "new\n")
    assert page.read_text() == f"above\n{table.BEGIN}\nnew\n{table.END}\nbelow\n"
