"""Appends to a Delta table that are made once.

An append claims a place: the claim is a number that depends only on the rows that the table held before
(`next index`, or the sum of the nodes' next seqs), and Delta stores it with the commit as the transaction
version of one application. Delta itself refuses, within the transaction, a claim that is not above the last
one: of a driver that was killed and restarted, of a second driver, of one that was paused. Each commit adds
rows, so each raises the claim of the next; hence two commits never add the same rows, with or without a
checkpoint.
"""

import json
import time
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from spark_jobs.session.spark_session import delta_snapshot, is_remote
from spark_jobs.tables.conflicts import CONCURRENT_CLAIM, SPARK_ERRORS, repeated
from spark_jobs.tables.table import Table, identifier
from storage.units import NO_INDEX

MAX_REFUSALS = 3  # retries of one claim that the table still gives
OBSERVED_WITHIN_S = 0.5


def append_once(
    rows: DataFrame,
    path: str,
    *,
    application: str,
    claim: int,
    position: str,
    note: Mapping[str, Any],
    replaces: bool = False,
) -> tuple[int, int] | None:
    """Append `rows`, one or more, if there was no append since the table gave `claim`.

    claim: above that of every commit before; a function of the table's rows alone. position: the column whose
    largest value is returned. note: kept in the commit. replaces: `rows`, also none, are then all rows of the
    table. Returns the number of rows and that value, or None when the claim was refused: then read the table
    again. Raises AnalysisException for a table that was removed.
    """
    metrics = Observation()
    observed = rows.observe(metrics, F.count("*").alias("count"), F.max(position).alias("last"))
    options = {"txnAppId": application, "txnVersion": str(claim), "userMetadata": json.dumps(note)}
    try:
        if replaces:
            observed.write.format("delta").mode("overwrite").options(**options).save(path)
        else:
            observed.writeTo(identifier(path)).options(**options).append()  # `save` would create the table
    except SPARK_ERRORS as error:
        if CONCURRENT_CLAIM in str(error):
            return None
        raise
    if not _was_observed(metrics, remote=is_remote(rows.sparkSession)):
        return None
    found = metrics.get
    return int(found["count"]), NO_INDEX if found["last"] is None else int(found["last"])


def claim_alone(spark: SparkSession, path: str, table: Table, *, application: str, claim: int) -> None:
    """Make a commit with a claim and no rows, unless the table has the claim, or a higher one.

    Of two at the same time one is refused, and repeated: the first one may have a lower claim.
    """
    writer = spark.createDataFrame([], table.schema).writeTo(identifier(path))
    writer = writer.options(txnAppId=application, txnVersion=str(claim))
    repeated(writer.append, (CONCURRENT_CLAIM,), MAX_REFUSALS)


def newest_claim(spark: SparkSession, path: str, application: str) -> int | None:
    """Return the newest claim of an application in a table, 0 without any; None where Spark does not
    give it: by Spark Connect, and in Databricks."""
    if is_remote(spark):
        return None
    try:
        _, snapshot = delta_snapshot(spark, path)
        claim = snapshot.transactions().get(application)
        return int(claim.get()) if claim.isDefined() else 0
    except (Py4JError, TypeError):  # TypeError: there is no such class
        return None


def precompute_claims(spark: SparkSession, path: str, *, application: str, claimed: int) -> None:
    """Let Delta compute now which claims the table's newest version holds, for the next append.

    Delta keeps the result until the next commit. This is more than half of the processor time of an append of
    1 000 rows: between two micro-batches it delays no record. The only call that triggers just this
    computation is an append under a used claim, `claimed`: Delta skips it.
    """
    writer = spark.range(0).write.format("delta").mode("append")
    writer.option("txnAppId", application).option("txnVersion", str(claimed)).save(path)


def _was_observed(metrics: Observation, *, remote: bool) -> bool:
    """Return whether the write ran at all: Delta silently skips one whose claim is used. Then there are no
    metrics, or, of a write by `writeTo`, metrics without a value.

    Metrics arrive a moment after the write. A wrong False does no harm: the caller reads the table. remote:
    by Spark Connect, whose server waits that moment itself.
    """
    if remote:
        return bool(metrics.get)
    observation: Any = metrics._jo
    future = observation.future()  # the public `get` waits without end when there was nothing to run
    give_up_at = time.monotonic() + OBSERVED_WITHIN_S
    while not future.isCompleted():
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.002)
    return int(observation.getRow().length()) > 0
