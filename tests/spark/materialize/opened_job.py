"""A job of `entries` that runs without Spark, and commits of others in its table."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from app.tables.delta_log import LOG_FOLDER, DeltaLog
from spark_jobs.materialize.entries import EntriesJob
from spark_jobs.source.log_reads import LogReads
from spark_jobs.source.logs_planning import LogRange
from spark_jobs.source.many_logs import read_ranges
from spark_jobs.source.options import parse_options
from spark_jobs.tables.local.commits import LocalTable
from spark_jobs.typed.claimed_table import ClaimedTable
from tests.spark.conftest import endpoints
from tests.spark.no_spark import no_spark
from tests.spark.source.log_server import FakeReplica


def opened_job(
    replicas: list[FakeReplica], folder: Path
) -> tuple[EntriesJob, Callable[[int, int], pa.Table]]:
    """Return a job, and a function that returns the rows of a range of the log."""
    options = {"endpoint": endpoints(replicas)}

    def rows(first: int, until: int) -> pa.Table:
        asked = parse_options({**options, "includeControl": "true"})
        return pa.Table.from_batches(list(read_ranges(asked, [LogRange("default", first, until, None)])))

    client = LogReads([replica.url for replica in replicas], "default", give_up_s=2)
    job = EntriesJob(no_spark(), client, str(folder / "entries"), options)
    job.open()
    return job, rows


def newest_file(job: EntriesJob) -> str:
    snapshot = DeltaLog(job.path).snapshot()
    assert snapshot is not None
    return max(snapshot.files, key=lambda path: int(snapshot.files[path].most["index"]))


def commit_of_user(
    table: EntriesJob | ClaimedTable | LocalTable, operation: str, *actions: Mapping[str, Any]
) -> int:
    """Make a commit that is not the job's in its table, and return its version."""
    version = DeltaLog(str(table.path)).versions().stop
    name = Path(table.path) / LOG_FOLDER / f"{version:020d}.json"
    lines = ({"commitInfo": {"operation": operation}}, *actions)
    name.write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    return version


def remove_commits(job: EntriesJob) -> None:
    """Write a checkpoint of the newest version, and remove the commits before it from the history."""
    versions = DeltaLog(job.path).versions()
    folder = Path(job.path) / LOG_FOLDER
    names = [folder / f"{version:020d}.json" for version in versions]
    actions = [json.loads(line) for name in names for line in name.read_text().splitlines()]
    last = {
        (kind, each.get("path") or each.get("appId")): action
        for action in actions
        for kind, each in action.items()
    }
    gone = {path for kind, path in last if kind == "remove"}
    kept = [
        action
        for (kind, name), action in last.items()
        if kind in ("metaData", "protocol", "txn") or (kind == "add" and name not in gone)
    ]
    columns = {kind: [action.get(kind) for action in kept] for kind in ("metaData", "protocol", "txn", "add")}
    for each in columns["metaData"]:
        if each is not None:
            each["configuration"] = list(each["configuration"].items())
            each["format"] = None
    strings = pa.map_(pa.string(), pa.string())
    kinds = {
        "metaData": pa.struct([("configuration", strings), ("schemaString", pa.string())]),
        "protocol": pa.struct(
            [
                ("minReaderVersion", pa.int32()),
                ("minWriterVersion", pa.int32()),
                ("writerFeatures", pa.list_(pa.string())),
            ]
        ),
        "txn": pa.struct([("appId", pa.string()), ("version", pa.int64())]),
        "add": pa.struct([("path", pa.string()), ("size", pa.int64()), ("stats", pa.string())]),
    }
    table = pa.table({kind: pa.array(columns[kind], kinds[kind]) for kind in kinds})
    pq.write_table(table, folder / f"{versions[-1]:020d}.checkpoint.parquet")
    for name in names[:-1]:
        name.unlink()
