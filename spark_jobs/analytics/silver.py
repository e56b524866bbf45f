"""A silver example: departure delays of flights by carrier and hour, from the stream of typed `records`.

Event time is the hour in which a flight left, for a cancelled one the scheduled hour. The watermark is
LATE_AFTER before the newest hour of all earlier records: a record whose hour is below it is late (airlines
report cancelled flights at the end of the day). It is written to `flights_late`, and is not counted in
`delays_by_carrier_hour`, so no record is dropped silently. Whether a record is late depends on the log's
order alone, not on the micro-batches, so a repeated run has the same result.

Appends to both tables use claims (tables/claims.py). A delay row is a partial sum, of one range of indexes;
`delays` adds the parts up. After a kill between the two appends, one table lags, and the next run completes
it.
"""

from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_jobs.tables.claims import MAX_REFUSALS, append_once
from spark_jobs.tables.table import RECORDS, Table, TableClash, create_table, is_table, read_table, table_path

LATE_AFTER = timedelta(hours=2)
FLIGHT = frozenset(
    ("carrier", "flight", "origin", "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay")
)
"""Columns of `records` that a log of flights has."""
ISO = "yyyy-MM-dd HH:mm:ss"


def _schema(**kinds: type) -> StructType:
    return StructType([StructField(name, kind()) for name, kind in kinds.items()])


DELAYS = Table(
    "delays_by_carrier_hour",
    _schema(
        carrier=StringType,
        hour=TimestampType,
        until_index=LongType,
        flights=LongType,
        cancelled=LongType,
        delay_sum=DoubleType,
        delay_max=DoubleType,
    ),
    cluster_by=("hour", "carrier"),
    statistics=("carrier", "hour", "until_index", "flights"),
    columns={
        "carrier": "two letters; key, with hour and until_index",
        "hour": "hour of departure, scheduled if there was none, New York time",
        "until_index": "the part ends before this index of the log",
        "flights": "flights of the part in that hour",
        "cancelled": "of them without a departure",
        "delay_sum": "minutes, of those that left",
        "delay_max": "minutes, null when none left",
    },
)
LATE = Table(
    "flights_late",
    _schema(
        index=LongType,
        carrier=StringType,
        flight=IntegerType,
        origin=StringType,
        hour=TimestampType,
        dep_delay=DoubleType,
        watermark=TimestampType,
        until_index=LongType,
    ),
    cluster_by=("index",),
    statistics=("index", "carrier", "hour", "watermark", "until_index"),
    columns={
        "index": "of the record; the key",
        "carrier": "two letters",
        "flight": "its number",
        "origin": "airport",
        "hour": "hour of departure, scheduled if there was none, New York time; before the watermark",
        "dep_delay": "minutes, null for a cancelled flight",
        "watermark": "the watermark before the record arrived",
        "until_index": "the part that brought it ends before this index",
    },
)


class DelaysJob:
    """Fills both tables of one log. The stream of `records` triggers it; it always reads the range after
    the tables' end."""

    def __init__(self, spark: SparkSession, tables: Path | str, log: str = "default") -> None:
        self.spark = spark
        self.records_path = table_path(tables, log, RECORDS)
        self.delays_path = table_path(tables, log, DELAYS)
        self.late_path = table_path(tables, log, LATE)

    def __getstate__(self) -> dict[str, Any]:
        """State for the process that writes, if that is another one (Spark Connect)."""
        return {**vars(self), "spark": None}

    def start(self, checkpoint: Path | str, trigger: str | None = None) -> None:
        """Follow `records`. trigger: a Spark interval; None: up to the present end, then return."""
        create_table(self.spark, self.delays_path, DELAYS)
        create_table(self.spark, self.late_path, LATE)
        rows = self.spark.readStream.format("delta").option("ignoreChanges", "true").load(self.records_path)
        writer = rows.select("_index").writeStream.foreachBatch(self.write)
        writer = writer.option("checkpointLocation", str(checkpoint))
        if trigger is None:
            writer.trigger(availableNow=True).start().awaitTermination()
        else:
            writer.trigger(processingTime=trigger).start()

    def write(self, arrived: DataFrame, batch_id: int) -> None:
        """Extend both tables to the last index of the micro-batch; late flights first, so none is skipped."""
        self.spark = arrived.sparkSession
        last = arrived.agg(F.max("_index")).collect()[0][0]
        position = self._end(self.delays_path, "until_index")
        if last is None or last < position:
            return
        until = int(last) + 1
        records = read_table(self.spark, self.records_path).where(
            (F.col("_index") >= position) & (F.col("_index") < until)
        )
        flights = with_watermark(flights_of(records), self._newest_hour()).persist()
        try:
            self._append_late(flights.where(is_late()), until)
            parts = delay_parts(flights.where(~is_late()), until)
            if not parts.isEmpty():
                append_once(
                    parts.coalesce(1),
                    self.delays_path,
                    application="commitlog-delays",
                    claim=position,
                    position="until_index",
                    note={"first_index": position, "until_index": until},
                )
        finally:
            flights.unpersist()

    def _append_late(self, late: DataFrame, until: int) -> None:
        for _ in range(MAX_REFUSALS):
            claim = self._end(self.late_path, "index") + 1
            new = late.where(F.col("index") >= claim).withColumn("until_index", F.lit(until).cast("long"))
            if new.isEmpty():
                return
            written = append_once(
                new.select(*LATE.schema.fieldNames()).coalesce(1),
                self.late_path,
                application="commitlog-late",
                claim=claim,
                position="index",
                note={"until_index": until},
            )
            if written is not None:
                return
        raise TableClash(self.late_path, f"the late flights from index {claim} on")

    def _end(self, path: str, column: str) -> int:
        last = read_table(self.spark, path).agg(F.max(column)).collect()[0][0]
        return 0 if last is None else int(last)

    def _newest_hour(self) -> Column:
        """Return the newest hour of all earlier records; no late one has it, so one table is sufficient."""
        newest = F.date_format(F.max("hour"), ISO)
        found = read_table(self.spark, self.delays_path).agg(newest).collect()[0][0]
        return F.lit(found).cast("timestamp")


def flights_in(spark: SparkSession, tables: Path | str, log: str = "default") -> DataFrame | None:
    """Return `flights_of` the typed records of a log, None if they are not flights or it has none."""
    path = table_path(tables, log, RECORDS)
    if not is_table(spark, path):
        return None
    records = read_table(spark, path)
    return flights_of(records) if set(records.columns) >= FLIGHT else None


def flights_of(records: DataFrame) -> DataFrame:
    """Return the flights with a valid hour.

    In RECORDS of a log of flights. Out index, carrier, flight, origin, hour (of the departure, as a time),
    dep_delay, scheduled_hour (0 to 23).
    """
    clock = F.floor(F.coalesce("dep_time", "sched_dep_time") / 100).cast("int")  # 517 is 5:17, 2400 midnight
    midnight = F.try_make_timestamp(*(F.col(name) for name in ("year", "month", "day")), *[F.lit(0)] * 3)
    hour = midnight + F.make_interval(hours=clock)
    scheduled = F.floor(F.col("sched_dep_time") / 100).cast("int").alias("scheduled_hour")
    flights = records.select(
        F.col("_index").alias("index"),
        "carrier",
        "flight",
        "origin",
        hour.alias("hour"),
        F.col("dep_delay").cast("double").alias("dep_delay"),
        scheduled,
    )
    return flights.where("hour IS NOT NULL")


def with_watermark(flights: DataFrame, newest: Column) -> DataFrame:
    """Return the watermark at each record. newest: hour of all earlier records, null for none."""
    before = Window.orderBy("index").rowsBetween(Window.unboundedPreceding, -1)
    reached = F.greatest(F.max("hour").over(before), newest)
    delay = F.expr(f"INTERVAL {int(LATE_AFTER.total_seconds())} SECONDS")
    return flights.withColumn("watermark", reached - delay)


def is_late() -> Column:
    return F.coalesce(F.col("hour") < F.col("watermark"), F.lit(False))


def delay_parts(flights: DataFrame, until: int) -> DataFrame:
    """Return the delays by carrier and hour. In `with_watermark`, without late ones. Out DELAYS."""
    parts = flights.groupBy("carrier", "hour").agg(
        F.count("*").alias("flights"),
        F.count_if(F.col("dep_delay").isNull()).alias("cancelled"),
        F.coalesce(F.sum("dep_delay"), F.lit(0.0)).alias("delay_sum"),
        F.max("dep_delay").alias("delay_max"),
    )
    return parts.withColumn("until_index", F.lit(until).cast("long")).select(*DELAYS.schema.fieldNames())


def delays(parts: DataFrame) -> DataFrame:
    """Return the sums of the parts. In DELAYS. Out carrier, hour, flights, cancelled, mean and most
    (minutes)."""
    whole = parts.groupBy("carrier", "hour").agg(
        F.sum("flights").alias("flights"),
        F.sum("cancelled").alias("cancelled"),
        F.sum("delay_sum").alias("delay_sum"),
        F.max("delay_max").alias("most"),
    )
    left = F.col("flights") - F.col("cancelled")
    mean = F.when(left > 0, F.col("delay_sum") / left).alias("mean")
    return whole.select("carrier", "hour", "flights", "cancelled", mean, "most")
