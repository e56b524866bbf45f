"""A Spark Declarative Pipeline over a log of flights: bronze from the log, silver with typed columns, gold.

Run it with `spark-pipelines run` in this folder; spark-pipeline.yml has the endpoint, the log, and the folder
of the checkpoints. Each table has each record once: the pipeline's checkpoint has the offset in the log, and
Delta takes each of its micro-batches once. The session of the pipeline is `spark`.
"""

from app.demo.flights import FLIGHTS_SCHEMA
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_jobs.source import CommitlogDataSource

spark = SparkSession.active()
spark.dataSource.register(CommitlogDataSource)
OPTIONS = {name: spark.conf.get(f"commitlog.{name}") for name in ("endpoint", "log")}


@dp.table(name="flights_bronze", comment="Each record of the log once, as it was appended")
def flights_bronze() -> DataFrame:
    return spark.readStream.format("commitlog").options(**OPTIONS, startingIndex="earliest").load()


@dp.table(name="flights_silver", comment="Each record that is a flight, as typed columns")
def flights_silver() -> DataFrame:
    flight = F.from_json(F.col("value").cast("string"), FLIGHTS_SCHEMA).alias("flight")
    rows = spark.readStream.table("flights_bronze").select("index", "timestamp", flight)
    return rows.select("index", "timestamp", "flight.*").where("carrier IS NOT NULL")


@dp.materialized_view(name="flights_gold", comment="Delays in minutes by carrier")
def flights_gold() -> DataFrame:
    return (
        spark.read.table("flights_silver")
        .groupBy("carrier")
        .agg(
            F.count("*").alias("flights"),
            F.count_if(F.col("dep_delay").isNull()).alias("cancelled"),
            F.avg("dep_delay").alias("mean_delay"),
        )
    )
