"""DataFrame in, DataFrame out: what the tables hold, and the questions that notebooks ask of them."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_jobs import schemas

WATERMARKS_DATA = (
    "role string, begin_index bigint, end_index bigint, committed_index bigint, peers map<string, bigint>"
)


def entries(records: DataFrame) -> DataFrame:
    """The data records. In RECORDS, out ENTRIES."""
    return records.where(F.col("type") == "data").select(*schemas.ENTRIES.fieldNames())


def watermarks(events: DataFrame) -> DataFrame:
    """One row a peer of each leader's `watermarks` event; other nodes' have no peers.

    In EVENTS, out WATERMARKS.
    """
    told = events.where(F.col("kind") == "watermarks").withColumn(
        "told", F.from_json("data", WATERMARKS_DATA)
    )
    rows = told.select(
        *("log", "term", "node", "seq", "timestamp"),
        *(f"told.{name}" for name in ("role", "begin_index", "end_index", "committed_index")),
        F.explode("told.peers").alias("peer", "watermark"),
    )
    return rows.select(*schemas.WATERMARKS.fieldNames())


def latest_watermarks(watermarks: DataFrame) -> DataFrame:
    """The newest row of each (log, term, peer). In and out WATERMARKS."""
    newest_first = Window.partitionBy("log", "term", "peer").orderBy(F.desc("seq"))
    ranked = watermarks.withColumn("rank", F.row_number().over(newest_first))
    return ranked.where(F.col("rank") == 1).drop("rank")


def json_values(entries: DataFrame, schema: StructType | str) -> DataFrame:
    """The fields of each value that is a JSON object of `schema`, after the index; a field that does not
    parse is null. In ENTRIES, out index and the columns of `schema`.
    """
    parsed = entries.select("index", F.from_json(F.col("value").cast("string"), schema).alias("row"))
    return parsed.select("index", "row.*")


def delays_by_hour(flights: DataFrame) -> DataFrame:
    """Departure delays in minutes by scheduled hour of departure.

    In: hour, dep_delay (null for a cancelled flight). Out: hour, flights, cancelled, median, late (90th
    percentile).
    """
    rows = flights.groupBy("hour").agg(
        F.count("*").alias("flights"),
        F.sum(F.col("dep_delay").isNull().cast("long")).alias("cancelled"),
        F.percentile("dep_delay", 0.5).alias("median"),
        F.percentile("dep_delay", 0.9).alias("late"),
    )
    return rows.orderBy("hour")


def index_check(entries: DataFrame) -> DataFrame:
    """One row:

    does each index stand in the table once? In ENTRIES, out rows, indexes, doubles, first, last.
    """
    return entries.agg(
        F.count("*").alias("rows"),
        F.countDistinct("index").alias("indexes"),
        (F.count("*") - F.countDistinct("index")).alias("doubles"),
        F.min("index").alias("first"),
        F.max("index").alias("last"),
    )
