"""DataFrame in, DataFrame out: the contents of the tables, and queries of the notebooks."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_jobs.tables import schemas


def entries(records: DataFrame) -> DataFrame:
    """Return the data records. In RECORDS, out ENTRIES."""
    return records.where(F.col("type") == "data").select(*schemas.ENTRIES.fieldNames())


def latest_watermarks(watermarks: DataFrame) -> DataFrame:
    """Return the newest row of each (log, term, peer). In and out WATERMARKS."""
    newest_first = Window.partitionBy("log", "term", "peer").orderBy(F.desc("seq"))
    ranked = watermarks.withColumn("rank", F.row_number().over(newest_first))
    return ranked.where(F.col("rank") == 1).drop("rank")


def epoch_differences(epochs: DataFrame, epoch_files: DataFrame) -> DataFrame:
    """Return contradictions between a node's epoch file and `epochs`; no row: they agree.

    Up to the newest epoch that both know, the file holds what `epochs` does, except for what the node has
    trimmed. What the file holds after that is not a contradiction, and neither is the end of that epoch in
    the file: a leader that lost its term, or is paused, may hold epochs that were never committed. The last
    epoch of either side may be open there alone. In EPOCHS, EPOCH_FILES. Out node, epoch, difference.
    """
    known = epochs.select(
        "epoch", F.struct("start_index", "start_offset").alias("start"), "end_index", "leader"
    )
    begins = epoch_files.groupBy("node").agg(F.min("epoch").alias("first"))
    wanted = begins.join(known, F.col("epoch") >= F.col("first")).drop("first")
    held = epoch_files.select(
        "node",
        "epoch",
        F.struct("start_index", "start_offset").alias("held_start"),
        F.col("end_index").alias("held_end"),
        F.col("leader").alias("held_leader"),
    )
    in_both = F.col("start").isNotNull() & F.col("held_start").isNotNull()
    node = Window.partitionBy("node")
    compared = (
        wanted.join(held, ["node", "epoch"], "full")
        .withColumn("newest", F.coalesce(F.max(F.when(in_both, F.col("epoch"))).over(node), F.lit(-1)))
        .withColumn("last", F.max(F.when(F.col("held_start").isNotNull(), F.col("epoch"))).over(node))
    )
    is_before, is_last = F.col("epoch") < F.col("newest"), F.col("newest") == F.col("last")
    difference = (
        F.when(F.col("start").isNull() & is_before, "`epochs` has no such epoch")
        .when(F.col("held_start").isNull() & is_before, "the file lacks it")
        .when(F.col("start") != F.col("held_start"), "it starts elsewhere")
        .when(F.col("leader") != F.col("held_leader"), "another leader opened it")
        .when((F.col("end_index") != F.col("held_end")) & (is_before | is_last), "it ends elsewhere")
    )
    return compared.select("node", "epoch", difference.alias("difference")).where("difference IS NOT NULL")


def delays_by_hour(flights: DataFrame) -> DataFrame:
    """Return departure delays in minutes by scheduled hour of departure.

    In: scheduled_hour, dep_delay (null for a cancelled flight). Out: hour, flights, cancelled, median, late
    (90th percentile).
    """
    rows = flights.groupBy(F.col("scheduled_hour").alias("hour")).agg(
        F.count("*").alias("flights"),
        F.sum(F.col("dep_delay").isNull().cast("long")).alias("cancelled"),
        F.percentile("dep_delay", 0.5).alias("median"),
        F.percentile("dep_delay", 0.9).alias("late"),
    )
    return rows.orderBy("hour")


def bin_width_s(entries: DataFrame, bins: int = 120) -> int:
    """Return the width in whole seconds of about `bins` bins of time, at least 1. In ENTRIES."""
    seconds = F.unix_seconds(F.max("timestamp")) - F.unix_seconds(F.min("timestamp"))
    span_s = entries.agg(seconds).collect()[0][0] or 0
    return max(1, -(-int(span_s) // bins))


def records_by_time(entries: DataFrame, width_s: int) -> DataFrame:
    """Return the records by time in bins of `width_s` seconds; bins without records are left out.

    In ENTRIES. Out start, records, size_bytes (of keys and values), in order.
    """
    seconds = F.unix_seconds("timestamp")
    start = F.timestamp_seconds(seconds - seconds % width_s)
    size = F.coalesce(F.length("key"), F.lit(0)) + F.coalesce(F.length("value"), F.lit(0))
    bins = entries.groupBy(start.alias("start"))
    return bins.agg(F.count("*").alias("records"), F.sum(size).alias("size_bytes")).orderBy("start")


def commit_ranges(history: DataFrame, entries: DataFrame) -> DataFrame:
    """Return the commits that added rows: each claimed the range from `first_index` up to the beginning of
    the next.

    history: of `entries`, from DESCRIBE HISTORY. In ENTRIES. Out version, timestamp, first_index, until_index
    (exclusive), written (rows, according to the commit), held (rows of the table in the range): a duplicated
    or missing row makes the two differ.
    """
    note = F.from_json("userMetadata", "first_index bigint, until_index bigint")
    claims = history.select(
        "version",
        "timestamp",
        note["first_index"].alias("first_index"),
        F.col("operationMetrics")["numOutputRows"].cast("bigint").alias("written"),
    ).where("first_index IS NOT NULL")
    end = entries.agg(F.max("index") + 1).collect()[0][0]
    following = F.lead("first_index", 1, end).over(Window.orderBy("version"))
    ranges = claims.withColumn("until_index", following)
    inside = (F.col("index") >= F.col("first_index")) & (F.col("index") < F.col("until_index"))
    counted = ranges.join(entries.select("index"), inside, "left").groupBy(*ranges.columns)
    return counted.agg(F.count("index").alias("held")).orderBy("version")


def index_check(entries: DataFrame) -> DataFrame:
    """One row:

    is each index in the table once? In ENTRIES, out rows, indexes, doubles, first, last.
    """
    return entries.agg(
        F.count("*").alias("rows"),
        F.countDistinct("index").alias("indexes"),
        (F.count("*") - F.countDistinct("index")).alias("doubles"),
        F.min("index").alias("first"),
        F.max("index").alias("last"),
    )
