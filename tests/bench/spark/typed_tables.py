"""Speed of the typed tables: rate beside plain `entries`, time to a typed row, changes of `current`.

    python -m tests.bench.spark.typed_tables [--parts fill,visible,current] [--records N] [--keys N]

One node, one Spark driver, the flights of the demo as JSON. One JSON line a part:

- `fill`: two logs of the same records into new tables, by a warm session, in turn: one without a schema, one
  with it; medians of the rounds. `ratio` compares the records per second until the last commit of `entries`
  of the first log and until that of `records` of the second one, `ratios_in_one_run` both of the second one;
  `current_s` is the rest of its run.
- `visible`: records are appended at an even rate; from the answer until a version of `records` has them.
- `current`: a table of so many keys, then batches of changes, one in ten of them a tombstone.
"""

import argparse
import itertools
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from app.client import CommitlogClient
from app.demo.flights import FLIGHTS_OF_2013, read_flights
from app.schemas import LogSchema, propose
from app.tables.delta_log import DeltaLog
from spark_jobs.materialize.config import MaterializeConfig
from spark_jobs.run import materialize
from spark_jobs.session.jars import DEFAULT_JARS_FOLDER, ensure_jars
from spark_jobs.session.spark_session import build_session
from spark_jobs.source import CommitlogDataSource
from spark_jobs.tables.schemas import arrow_schema
from spark_jobs.tables.table import ENTRIES
from spark_jobs.tables.table_writer import TableWriter
from spark_jobs.typed.claimed_table import ClaimedTable
from spark_jobs.typed.current import CurrentTable
from spark_jobs.typed.layout import compatibility_groups
from tests.bench.spark.job import report, running_job
from tests.bench.spark.many_tables import percentiles
from tests.bench.systems.local_cluster import print_figure
from tests.support.cluster import running
from tests.support.programs import run_program

PLAIN, TYPED = "plain", "typed"  # logs of `fill`
PARTS = ("fill", "visible", "current")
REQUEST_RECORDS = 5_000
APPEND_RECORDS = 50
WARM_UP_S = 20.0
LIMIT_S = 300.0
ROUNDS = 5


def flights(count: int) -> tuple[list[bytes], list[bytes]]:
    """Return keys and values of so many flights; they repeat after those of a year."""
    year = read_flights(min(count, FLIGHTS_OF_2013))
    found = [(str(each.key).encode(), msgspec.convert(each.value, bytes)) for each in year]
    keys, values = zip(*itertools.islice(itertools.cycle(found), count), strict=True)
    return list(keys), list(values)


def warm_session() -> SparkSession:
    ensure_jars(DEFAULT_JARS_FOLDER)
    spark = build_session("bench", jars_folder=DEFAULT_JARS_FOLDER)
    spark.dataSource.register(CommitlogDataSource)
    return spark


def last_commit_s(table: Path) -> float:
    """Return the time of the last commit that added rows, in seconds since 1970."""
    log = DeltaLog(str(table))
    found = [log.commit(version) for version in log.versions()]
    return max(commit.timestamp_ms for commit in found if commit is not None and commit.added) / 1_000


def fill(client: CommitlogClient, keys: list[bytes], values: list[bytes]) -> None:
    for start in range(0, len(values), REQUEST_RECORDS):
        part = slice(start, start + REQUEST_RECORDS)
        columns = {"key": pa.array(keys[part], pa.binary()), "value": pa.array(values[part], pa.binary())}
        client.append_arrow(pa.table(columns))


def measure_fill(folder: Path, records: int, rounds: int) -> None:
    spark = warm_session()
    keys, values = flights(records)
    with running(folder / "nodes", 1, logs=({"name": PLAIN}, {"name": TYPED})) as cluster:
        url = cluster.url("n1")

        def run(log: str, number: int) -> tuple[float, float, float]:
            """Return the seconds until the last commit of `entries`, that of `records`, and the end."""
            tables = folder / f"tables-{number}"
            most = 2 * records  # the log has control records too: all is one micro-batch
            config = MaterializeConfig(
                endpoint=url, tables=tables, logs=(log,), available_now=True, max_records_per_trigger=most
            )
            began_s = time.time()
            materialize(config, spark=spark)
            ended_s = time.time()
            entries_s, typed = last_commit_s(tables / log / "entries"), tables / log / "records"
            last_s = last_commit_s(typed) if typed.exists() else entries_s
            return entries_s - began_s, last_s - began_s, ended_s - began_s

        for log in (PLAIN, TYPED):
            cluster.leader(log)
            fill(CommitlogClient([url], log=log), keys, values)
        definition = propose(values[:: max(1, records // 5_000)]).definition
        CommitlogClient([url], log=TYPED).put_schema(definition=definition, format="json")
        found = [(run(PLAIN, number), run(TYPED, number)) for number in range(rounds + 1)][1:]
        plain_s, entries_s, typed_s = (
            median(values) for values in zip(*((a[0], b[0], b[1]) for a, b in found), strict=True)
        )
        print_figure(
            figure="fill",
            records=records,
            rounds=rounds,
            entries_per_s=round(records / plain_s),
            entries_beside_records_per_s=round(records / entries_s),
            records_per_s=round(records / typed_s),
            ratio=round(plain_s / typed_s, 2),
            ratios=[round(plain[0] / typed[1], 2) for plain, typed in found],
            ratios_in_one_run=[round(typed[0] / typed[1], 2) for _, typed in found],
            goal=0.7,
            current_s=round(median(b[2] - b[1] - (a[2] - a[1]) for a, b in found), 1),
        )
    spark.stop()


class Producer(threading.Thread):
    """Appends at an even rate. acked: times of the answers, and the last index of each."""

    def __init__(self, url: str, values: list[bytes], rate: int) -> None:
        super().__init__(daemon=True)
        self.ending = threading.Event()
        self.acked: list[tuple[float, int]] = []
        self._client = CommitlogClient([url])
        self._values = itertools.cycle(values)
        self._each_s = APPEND_RECORDS / rate

    def run(self) -> None:
        due_s = time.monotonic()
        while not self.ending.wait(max(0.0, due_s - time.monotonic())):
            due_s += self._each_s
            last = self._client.append(list(itertools.islice(self._values, APPEND_RECORDS))).last_index
            self.acked.append((time.time(), last))


class Watcher(threading.Thread):
    """Notes when the versions of a table are first seen, and the last index of each."""

    def __init__(self, table: Path, position: str) -> None:
        super().__init__(daemon=True)
        self.ending = threading.Event()
        self.seen: list[tuple[float, int]] = []
        self._table, self._position = table, position

    def run(self) -> None:
        log, version = DeltaLog(str(self._table)), 0
        while not self.ending.wait(0.01):
            while (self._table / "_delta_log" / f"{version:020d}.json").exists():
                now_s, commit = time.time(), log.commit(version)
                if commit is not None and (indexes := commit.largest(self._position)):
                    self.seen.append((now_s, max(indexes)))
                version += 1

    def waits(self, acked: list[tuple[float, int]]) -> list[float]:
        found = []
        for at_s, index in acked:
            seen_s = next((seen_s for seen_s, last in self.seen if last >= index), None)
            if seen_s is not None:
                found.append(seen_s - at_s)
        return found


def measure_visible(folder: Path, rate: int, seconds: float, more: list[str]) -> None:
    _, values = flights(20_000)
    tables = folder / "tables"
    with running(folder / "nodes", 1) as cluster:
        url = cluster.url(cluster.leader())
        client = CommitlogClient([url])
        client.put_schema(definition=propose(values).definition, format="json")
        producer = Producer(url, values, rate)
        producer.start()
        with running_job(folder, url, tables, more) as job:
            watchers = {name: Watcher(tables / "default" / name, index) for name, index in INDEXES.items()}
            for watcher in watchers.values():
                watcher.start()
            until_s = time.monotonic() + LIMIT_S
            while not watchers["records"].seen:
                if time.monotonic() > until_s or job.poll() is not None:
                    raise TimeoutError(report(folder))
                time.sleep(0.1)
            time.sleep(WARM_UP_S)
            from_s = time.time()
            time.sleep(seconds)
            ended_s = time.time()
            time.sleep(3.0)
            producer.ending.set()
            producer.join()
        for watcher in watchers.values():
            watcher.ending.set()
            watcher.join()
    measured = [each for each in producer.acked if from_s <= each[0] < ended_s]
    print_figure(
        figure="visible",
        options=more,
        records_per_s=round(len(measured) * APPEND_RECORDS / seconds),
        goal_p50_s=1.2,
        **{f"{name}_s": percentiles(watcher.waits(measured)) for name, watcher in watchers.items()},
    )


INDEXES = {"entries": "index", "records": "_index"}


def measure_current(folder: Path, keys: int, changes: int) -> None:
    spark = warm_session()
    schema = LogSchema(1, 0, "json", "id BIGINT NOT NULL, name STRING, amount DOUBLE, at TIMESTAMP")
    [group] = compatibility_groups([schema])
    paths = {name: str(folder / name) for name in ("entries", "records", "current")}
    entries = TableWriter(spark, paths["entries"], ENTRIES)
    entries.create()
    records = ClaimedTable(spark, paths["records"], group.records(), "_index")
    records.open("log", "id")
    current = CurrentTable(spark, paths["current"], paths["records"], paths["entries"])
    current.open(group, "log", "id")
    chance = np.random.default_rng(1)
    first = 0
    for number in range(ROUNDS + 2):
        numbers = np.arange(keys) if number == 0 else chance.choice(keys, changes, replace=False)
        count = len(numbers)
        gone = np.zeros(count, bool) if number == 0 else np.arange(count) % 10 == 0
        add_rows(entries, records, first, numbers, gone)
        first += count
        started_s = time.perf_counter()
        current.extend(first)
        seconds = time.perf_counter() - started_s
        snapshot = DeltaLog(paths["current"]).snapshot()
        print_figure(
            figure="current",
            keys=keys,
            changes=count,
            seconds=round(seconds, 2),
            goal_s=None if number == 0 else 3.0,
            files=snapshot and len(snapshot.files),
        )
    spark.stop()


def add_rows(entries: TableWriter, records: ClaimedTable, first: int, numbers: Any, gone: Any) -> None:
    """Add records of these keys to both tables; `gone` marks the tombstones."""
    count = len(numbers)
    indexes = np.arange(first, first + count)
    names = [f"{number:09d}".encode() for number in numbers]
    at = pa.array(np.full(count, 1_767_225_600_000_000) + indexes, pa.timestamp("us", "UTC"))
    tombstones = np.flatnonzero(gone)
    if len(tombstones):
        known = arrow_schema(ENTRIES.schema)
        of_entries: dict[str, Any] = {field.name: pa.nulls(len(tombstones), field.type) for field in known}
        of_entries["index"] = pa.array(indexes[tombstones])
        of_entries["key"] = pa.array([names[each] for each in tombstones], pa.binary())
        of_entries = {name: of_entries[name].cast(known.field(name).type) for name in known.names}
        entries.append(
            pa.table(of_entries, schema=known), application="bench", claim=first, position="index", note={}
        )
    rows = {
        "_index": pa.array(indexes),
        "_term": pa.array(np.ones(count, np.int64)),
        "_timestamp": at,
        "_key": pa.array(names, pa.binary()),
        "_schema_version": pa.array(np.ones(count, np.int32)),
        "_rescued": pa.nulls(count, pa.string()),
        "id": pa.array(numbers),
        "name": pa.array([f"name of {number}" for number in numbers]),
        "amount": pa.array(numbers * 0.5 + first),
        "at": at,
    }
    wanted = arrow_schema(records.table.schema)
    table = pa.table([rows[name] for name in wanted.names], schema=wanted)
    records.append(table.filter(pa.array(~gone)), {})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--records", type=int, default=600_000, help="of `fill`")
    parser.add_argument("--rounds", type=int, default=3, help="of `fill`, after one to warm up")
    parser.add_argument("--rate", type=int, default=1_000, help="of `visible`: records a second")
    parser.add_argument("--seconds", type=float, default=30.0, help="of `visible`")
    parser.add_argument("--job", default="", help="of `visible`: more options of the job")
    parser.add_argument("--keys", type=int, default=1_000_000, help="of `current`")
    parser.add_argument("--changes", type=int, default=10_000, help="of `current`: in a batch")
    options = parser.parse_args()
    for part in options.parts.split(","):
        with tempfile.TemporaryDirectory(prefix="commitlog-bench-") as name:
            folder = Path(name)
            (folder / "nodes").mkdir()
            match part:
                case "fill":
                    measure_fill(folder, options.records, options.rounds)
                case "visible":
                    measure_visible(folder, options.rate, options.seconds, options.job.split())
                case "current":
                    measure_current(folder, options.keys, options.changes)
                case _:
                    parser.error(f"`--parts` must be of {', '.join(PARTS)}, got {part!r}.")


if __name__ == "__main__":
    run_program(main)
