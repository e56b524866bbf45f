"""Comparison of log and table, `commitlog verify --tables`: `python -m spark_jobs.verify --endpoint URLS
[--log NAME]`.

The service sums digests of its data records by blocks of 10 000 indexes, Spark does the same with the rows of
`entries` (app/tables/digests.py). The first unequal block is compared record by record to find the first
index that differs. Also compares `epoch_files` with `epochs`, and for a log with a schema the typed tables
with `entries` (typed/differences.py). Exit code 0: equal; 1: not equal, or Spark
failed; 2: an invalid configuration; 4: no such table; 5: no node answers; 130: Ctrl-C.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any

from spark_jobs.interruption import INTERRUPTED, end_at_once

if __name__ == "__main__":
    end_at_once(INTERRUPTED)

import click

from app.client import ClientError, CommitlogClient, NoAnswer, NotFound, Unavailable
from app.client.tables import Tables
from app.errors import ConfigError
from app.extras import imports_of_extra

with imports_of_extra("spark", __name__):
    import pyarrow as pa
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F

from app.tables.digests import BLOCK, COLUMNS, BlockSum, block_sums, first_unequal
from app.tables.names import ENTRIES, LOG_ID_PROPERTY
from spark_jobs.errors import OptionError, SourceError, Unreachable, write_failure
from spark_jobs.job_lines import waits_reported
from spark_jobs.materialize.followed_logs import named
from spark_jobs.session.jars import JarsUnavailable
from spark_jobs.session.settings import (
    give_up_option,
    given_options,
    settings_of,
    spark_options,
    token_option,
)
from spark_jobs.session.spark_session import JavaNotFound, open_session
from spark_jobs.source.log_reads import LogReads
from spark_jobs.source.options import parse_endpoints
from spark_jobs.tables.metadata import table_properties
from spark_jobs.tables.table import EPOCH_FILES, EPOCHS
from spark_jobs.tables.transforms import epoch_differences
from spark_jobs.typed.differences import typed_differences
from storage.units import NO_INDEX

SUMS = "first bigint, count bigint, high bigint, low bigint"
HALF = 1 << 32
TRIMMED = "index-trimmed"
_ATTEMPTS = 5  # to compare before retention removes a part of it
_GIVE_UP_S = 30.0


@dataclass(frozen=True)
class Verified:
    """Result of a comparison: indexes [from_index, until_index) of the log and of one version of `entries`.

    first_difference: the first index whose record differs, and the difference. epochs: contradictions of
    epoch files, as text. typed: the first differences of the typed tables, as text. typed_until_index: the
    typed tables hold the records before it, which are compared; None without typed tables.
    """

    log: str
    version: int
    from_index: int
    until_index: int
    records: int
    blocks: int
    unequal_blocks: int
    first_difference: int | None
    difference: str | None
    epochs: tuple[str, ...]
    typed: tuple[str, ...] = ()
    typed_until_index: int | None = None

    @property
    def equal(self) -> bool:
        return self.first_difference is None and not self.epochs and not self.typed

    def __str__(self) -> str:
        blocks = "1 block" if self.blocks == 1 else f"{self.blocks:,} blocks"
        outcome = f"{self.records:,} records in {blocks} are the same"
        if self.first_difference is not None:
            outcome = f"{self.unequal_blocks:,} of {self.blocks:,} blocks differ, first at index "
            outcome += f"{self.first_difference:,}: {self.difference}"
        span = f"indexes {self.from_index:,} to {self.until_index - 1:,}"
        first = f"log {self.log!r} against version {self.version} of entries, {span}: {outcome}"
        lines = [first, *self.epochs, *self.typed]
        if self.typed_until_index is not None:
            outcome = "differ from" if self.typed else "equal"
            lines.append(f"typed tables {outcome} entries up to index {self.typed_until_index - 1:,}")
        return "\n".join(lines)


class TableChanged(RuntimeError):
    """One version of a table was read twice with different results: another program writes to its files."""


FAILURES = (ClientError, SourceError, PySparkException, TableChanged, JarsUnavailable, JavaNotFound)


def verify_tables(
    spark: SparkSession,
    endpoint: str,
    log: str = "default",
    token: str | None = None,
    give_up_s: float = _GIVE_UP_S,
) -> Verified:
    """Compare a log with its tables as they are now. Raises ClientError, SourceError, PySparkException."""
    endpoints = parse_endpoints(endpoint)
    with CommitlogClient(endpoints, log=log, token=token, give_up_s=give_up_s) as client:
        known = Tables(client)
        paths = [known.find(each.name).path for each in (EPOCHS, EPOCH_FILES)]
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                compared = _compare(spark, client, known, log)
                break
            except NotFound as error:
                if error.code != TRIMMED or attempt == _ATTEMPTS:
                    raise
        differences = epoch_differences(*(spark.read.format("delta").load(path) for path in paths))
        epochs = tuple(
            f"epoch {row['epoch']} in the epoch file of {row['node']} against `epochs`: {row['difference']}"
            for row in differences.orderBy("node", "epoch").collect()
        )
        reads = LogReads(endpoints, log, token)
        typed, typed_until = typed_differences(spark, known, reads)
    return replace(compared, epochs=epochs, typed=typed, typed_until_index=typed_until)


def _compare(spark: SparkSession, client: CommitlogClient, known: Tables, log: str) -> Verified:
    """Compare the records alone. Raises NotFound when compared records of the log were trimmed."""
    first = max(0, client.tail()["begin_index"])
    table = known.find(ENTRIES)
    assert table.materialized_index is not None  # of `entries` it is known
    rows = spark.read.format("delta").option("versionAsOf", table.version).load(table.path)
    log_end = int(client.tail()["committed_index"]) + 1  # of now
    end, index, difference = end_and_strays(rows, log, log_end)
    until = max(table.materialized_index + 1, end)
    log_id = next(each["id"] for each in client.logs() if each["name"] == log)
    is_of_another = table_properties(spark, table.path).get(LOG_ID_PROPERTY, log_id) != log_id
    in_log = _of_log(known, first, until, BLOCK)
    in_table = _of_table(rows, first, until, BLOCK)
    blocks = in_log.keys() | in_table.keys()
    if is_of_another:
        index, difference = first, "the table holds the records of another log"
    elif (start := first_unequal(in_log, in_table)) is not None:
        index, difference = _first_difference(known, rows, max(first, start), min(until, start + BLOCK))
    elif until < first:
        index, difference = until, f"the log begins at index {first:,}, after the end of the table"
    return Verified(
        log=log,
        version=table.version,
        from_index=first,
        until_index=until,
        records=sum(part.count for part in in_log.values()),
        blocks=len(blocks),
        unequal_blocks=sum(1 for start in blocks if in_log.get(start) != in_table.get(start)),
        first_difference=index,
        difference=difference,
        epochs=(),
    )


def end_and_strays(rows: DataFrame, log: str, log_end: int) -> tuple[int, int | None, str | None]:
    """Return the index after the last row that may be of a record, 0 for none, and the first index, NO_INDEX
    for null, of rows that no record can have, and how they differ; None for both without such rows.

    log_end: index after the last committed record. The service knows the end of the table from the statistics
    of the data files, which other programs may leave out; and it compares no row after that end.
    """
    index = F.coalesce(F.col("index"), F.lit(NO_INDEX))
    has_place = index.between(0, log_end - 1) & F.col("log").eqNullSafe(log)
    found = rows.agg(
        F.coalesce(F.max(F.when(has_place, index)) + 1, F.lit(0)).alias("end"),
        F.count(F.when(~has_place, index)).alias("count"),
        F.min(F.when(~has_place, index)).alias("first"),
    ).collect()[0]
    if not found["count"]:
        return int(found["end"]), None, None
    count = "1 row" if found["count"] == 1 else f"{found['count']:,} rows"
    difference = f"the table has {count} at an index that the log lacks, or of another log"
    return int(found["end"]), int(found["first"]), difference


def _first_difference(known: Tables, rows: DataFrame, first: int, until: int) -> tuple[int, str]:
    """Return the first index of an unequal block at which log and table differ, and how."""
    in_log, in_table = _of_log(known, first, until, 1), _of_table(rows, first, until, 1)
    index = first_unequal(in_log, in_table)
    if index is None:
        raise TableChanged(f"the block from index {first} differed before and is equal now")
    held, stored = in_table.get(index, BlockSum()), in_log.get(index, BlockSum())
    if held.count != stored.count:
        return index, f"the log has {stored.count} such record, the table {held.count}"
    return index, "the record's content differs"


def _of_log(known: Tables, first: int, until: int, block: int) -> dict[int, BlockSum]:
    sums: dict[int, BlockSum] = {}
    for page in known.digests(first, until, block):
        for start, part in page.sums.items():
            sums[start] = sums.get(start, BlockSum()) + part
    return sums


def _of_table(rows: DataFrame, first: int, until: int, block: int) -> dict[int, BlockSum]:
    def summed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _as_rows(block_sums(batch, block))

    wanted = rows.where((F.col("index") >= first) & (F.col("index") < until)).select(*COLUMNS)
    parts = wanted.mapInArrow(summed, SUMS).groupBy("first")
    found = parts.agg(*(F.sum(name).alias(name) for name in ("count", "high", "low"))).toArrow()
    return {
        row["first"]: BlockSum() + BlockSum(row["count"], row["high"] * HALF + row["low"])
        for row in found.to_pylist()
    }


def _as_rows(sums: Mapping[int, BlockSum]) -> pa.RecordBatch:
    """Return digests in two halves, so that Spark can add them up without overflow."""
    parts = list(sums.values())
    return pa.RecordBatch.from_pydict(
        {
            "first": pa.array(list(sums), pa.int64()),
            "count": pa.array([part.count for part in parts], pa.int64()),
            "high": pa.array([part.digest // HALF for part in parts], pa.int64()),
            "low": pa.array([part.digest % HALF for part in parts], pa.int64()),
        }
    )


@click.command(
    epilog="\b\nExamples:\n"
    "  python -m spark_jobs.verify --endpoint http://127.0.0.1:8101\n"
    "  python -m spark_jobs.verify --endpoint http://127.0.0.1:8101 --log 'orders-*' --json"
)
@click.option("--endpoint", required=True, metavar="URLS", help="Base URLs of nodes, comma-separated.")
@click.option(
    "--log",
    default="default",
    show_default=True,
    help="Names and patterns such as 'orders-*', comma-separated.",
)
@token_option
@give_up_option(_GIVE_UP_S)
@click.option("--json", is_flag=True, help="Print JSON.")
@spark_options
def options(**given: Any) -> SimpleNamespace:
    """Compare a log with its tables. Exit code 1: they differ."""
    return SimpleNamespace(**given)


def main(arguments: list[str] | None = None) -> int:
    """Print the result of the comparison. Return the exit code."""
    given = given_options(options, "spark_jobs.verify", arguments)
    try:
        settings = settings_of(given)
        of_cluster = LogReads(parse_endpoints(given.endpoint), "", given.token, given.give_up_s)
        with waits_reported(as_json=given.json):
            logs = named([given.log], of_cluster.log_names)
            with open_session("commitlog-verify", settings) as spark:
                service = given.token, given.give_up_s
                verified = [verify_tables(spark, given.endpoint, log, *service) for log in logs]
    except (ConfigError, OptionError) as error:
        write_failure(error, 2, as_json=given.json)
        return 2
    except FAILURES as error:
        is_unavailable = isinstance(error, NoAnswer | Unavailable | Unreachable)
        code = 4 if isinstance(error, NotFound) else 5 if is_unavailable else 1
        write_failure(error, code, as_json=given.json)
        return code
    for one in verified:
        outcome = json.dumps({**asdict(one), "equal": one.equal}) if given.json else str(one)
        sys.stdout.write(f"{outcome}\n")
    return 0 if all(one.equal for one in verified) else 1


if __name__ == "__main__":
    sys.exit(main())
