"""Checks of the invariants of the typed tables, by Spark.

Each record of `entries` that is not a tombstone is once in `records` or in `dead_letters` (`misplaced`).
`current` holds the newest record of each key, unless a tombstone removed it (`outdated`).
"""

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.tables.table import quoted_name
from spark_jobs.typed.local_current import REMOVED_AT

PLACE = ("term", "timestamp", "key")  # of a record, the same in all tables
RECORD_KEY, DUE, HELD, COUNT = "record key", "due index", "held index", "held rows"  # as REMOVED_AT


def misplaced(
    entries: DataFrame,
    records: Sequence[DataFrame],
    letters: DataFrame,
    until: int,
    log_end: int | None = None,
) -> DataFrame:
    """Return the records before `until` that break the first invariant: index, problem.

    records: `records` of all compatibility groups. log_end: also rows from this index on, which no record can
    have.
    """
    named = [rows.select(*(F.col(f"_{name}").alias(name) for name in ("index", *PLACE))) for rows in records]
    index = F.col("index")
    is_compared = (index < until) | index.isNull()
    if log_end is not None:
        is_compared |= index >= log_end
    typed = reduce(DataFrame.unionAll, [*named, letters.select("index", *PLACE)]).where(is_compared)
    counted = typed.groupBy("index").agg(
        F.count("*").alias("count"), F.first(F.struct(*PLACE)).alias("typed_place")
    )
    due = entries.where(F.col("index") < until).select(
        "index", F.col("value").isNull().alias("is_tombstone"), F.struct(*PLACE).alias("place")
    )
    both = due.join(counted, "index", "full_outer")
    count = F.coalesce("count", F.lit(0))
    problem = (
        F.when(F.col("place").isNull(), F.lit("it is in the typed tables, and not in entries"))
        .when(F.col("is_tombstone") & (count > 0), F.lit("a tombstone is in the typed tables"))
        .when(F.col("is_tombstone"), F.lit(None))
        .when(count == 0, F.lit("it is in entries, and neither in records nor in dead_letters"))
        .when(count > 1, F.concat(F.lit("it is "), count, F.lit(" times in records and dead_letters")))
        .when(~F.col("place").eqNullSafe(F.col("typed_place")), F.lit("its term, timestamp or key differs"))
    )
    return both.select("index", problem.alias("problem")).where("problem IS NOT NULL")


def outdated(
    entries: DataFrame, records: DataFrame, current: DataFrame, keys: Sequence[str], until: int
) -> DataFrame:
    """Return the rows of one `current` that differ from the newest records before `until`: problem."""
    own = list(map(quoted_name, keys))
    known = records.where(F.col("_index") < until).where(" AND ".join(f"{key} IS NOT NULL" for key in own))
    newest = known.groupBy(*own).agg(
        F.max("_index").alias("_index"), F.max_by("_key", "_index").alias(RECORD_KEY)
    )
    removed = entries.where((F.col("index") < until) & F.col("value").isNull() & F.col("key").isNotNull())
    removed = removed.groupBy(F.col("key").alias(RECORD_KEY)).agg(F.max("index").alias(REMOVED_AT))
    removed_at = F.col(REMOVED_AT)
    due = newest.join(removed, RECORD_KEY, "left").where(removed_at.isNull() | (removed_at < F.col("_index")))
    due = due.select(*own, F.col("_index").alias(DUE))
    held = current.groupBy(*own).agg(F.max("_index").alias(HELD), F.count("*").alias(COUNT))
    both = due.join(held, list(keys), "full_outer")
    key = F.to_json(F.struct(*own))
    due_text, held_text = F.col(DUE).cast("string"), F.col(HELD).cast("string")
    problem = (
        F.when(F.col(DUE).isNull() & F.col(HELD).isNull(), F.lit("it is of no record"))
        .when(F.col(HELD).isNull(), F.concat(F.lit("the record at index "), due_text, F.lit(" is missing")))
        .when(F.col(DUE).isNull(), F.concat(F.lit("the record at index "), held_text, F.lit(" is removed")))
        .when(F.col(COUNT) > 1, F.lit("it is there twice"))
        .when(
            F.col(DUE) != F.col(HELD),
            F.concat(F.lit("it is of index "), held_text, F.lit(", the newest is "), due_text),
        )
    )
    finding = F.concat(F.lit("key "), key, F.lit(": "), problem)
    return both.select(finding.alias("problem")).where("problem IS NOT NULL")
