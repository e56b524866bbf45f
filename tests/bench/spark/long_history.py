"""Cost of a small batch on a table with a long history, and on a new one. One JSON line for each.

`python -m tests.bench.spark.long_history [--commits 20000] [--batches 120]`: the history is written as
commits of the protocol; the batches of 100 rows are appended as the job does it. `spark_s`: the commits that
Spark made, because they are due to have a checkpoint.
"""

import argparse
import json
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from spark_jobs.tables.local.data_files import statistics_of
from spark_jobs.tables.schemas import arrow_schema
from spark_jobs.tables.table import ENTRIES, PROPERTIES
from spark_jobs.tables.table_writer import TableWriter
from tests.bench.systems.local_cluster import print_figure
from tests.spark.fast import fast_session
from tests.support.programs import run_program

ROWS = 100
APPLICATION = "commitlog-entries"
INTERVAL = int(PROPERTIES["delta.checkpointInterval"])


def rows(first: int) -> pa.Table:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    reported = [
        {
            "log": "l",
            "index": first + number,
            "term": 1,
            "offset": first,
            "timestamp": at,
            "value": b"x" * 1_000,
        }
        for number in range(ROWS)
    ]
    return pa.Table.from_pylist(reported, arrow_schema(ENTRIES.schema))


def write_history(table: Path, commits: int) -> None:
    """Write commits of files that do not exist."""
    stats = statistics_of(rows(0), ENTRIES.statistics)
    for version in range(1, commits):
        for bound in ("minValues", "maxValues"):
            stats[bound] |= {"index": version * ROWS, "offset": version * ROWS}
        add = {
            "path": f"part-{version}.parquet",
            "partitionValues": {},
            "size": 10_000,
            "modificationTime": 0,
            "dataChange": True,
            "stats": json.dumps(stats),
        }
        transaction = {"appId": APPLICATION, "version": version * ROWS, "lastUpdated": 0}
        info = {"timestamp": version, "operation": "WRITE", "operationParameters": {}}
        actions = ({"commitInfo": info}, {"txn": transaction}, {"add": add})
        lines = "".join(f"{json.dumps(action)}\n" for action in actions)
        (table / "_delta_log" / f"{version:020d}.json").write_text(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=20_000)
    parser.add_argument("--batches", type=int, default=120)
    options = parser.parse_args()
    spark = fast_session("history")
    with tempfile.TemporaryDirectory(prefix="commitlog-bench-") as folder:
        for commits in (1, options.commits):
            table = Path(folder) / str(commits)
            TableWriter(spark, str(table), ENTRIES).create()
            write_history(table, commits)
            writer = TableWriter(spark, str(table), ENTRIES)
            took_s: dict[int, float] = {}
            for version in range(commits, commits + options.batches):
                batch, began_s = rows(version * ROWS), time.monotonic()
                claim = version * ROWS
                done = writer.append(batch, application=APPLICATION, claim=claim, position="index", note={})
                assert done is not None
                took_s[version] = time.monotonic() - began_s
            by_spark = [round(s, 3) for version, s in took_s.items() if version % INTERVAL == 0]
            first_s = took_s.pop(commits)
            small = sorted(seconds for version, seconds in took_s.items() if version % INTERVAL)
            print_figure(
                commits=commits,
                first_s=round(first_s, 3),
                batch_p50_s=round(small[len(small) // 2], 4),
                batch_max_s=round(small[-1], 4),
                mean_s=round(sum(took_s.values()) / len(took_s), 4),
                spark_s=by_spark,
            )
    spark.stop()


if __name__ == "__main__":
    run_program(main)
