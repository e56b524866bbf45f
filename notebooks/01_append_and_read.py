# Databricks notebook source
# MAGIC %md
# MAGIC # Append and read: from HTTP to a Delta table
# MAGIC
# MAGIC A record is appended over HTTP, replicated to a majority of three nodes, and written by Spark to a
# MAGIC Delta table that contains every index exactly once. This notebook appends one record and reads it
# MAGIC back. It then queries the tables for the delays of the flights of 2013 and for the effect of a killed
# MAGIC leader. The only change is the appended record.
# MAGIC
# MAGIC Requirements: a running cluster and the tables of its log; `make demo ARGS=--keep` provides both.

# COMMAND ----------

dbutils.widgets.text("endpoint", "http://127.0.0.1:8101", "Base URLs of nodes, comma-separated")
dbutils.widgets.text("log", "default", "Name of the log")
dbutils.widgets.text("tables", "demo-data/tables", "Folder of the Delta tables")

# COMMAND ----------

import os

from app.client import CommitlogClient, Record
from pyspark.sql import functions as F
from spark_jobs.analytics.plots import delays_by_hour_figure, watermarks_figure
from spark_jobs.source import CommitlogDataSource
from spark_jobs.tables.table import ENTRIES, EPOCHS, WATERMARKS, read_table, table_path
from spark_jobs.tables.transforms import delays_by_hour, index_check, json_values, latest_watermarks

spark.dataSource.register(CommitlogDataSource)
endpoint, log, tables = (dbutils.widgets.get(name) for name in ("endpoint", "log", "tables"))
token = os.environ.get("COMMITLOG_TOKEN", "")  # a widget would show it

# COMMAND ----------

# MAGIC %md
# MAGIC ## One append
# MAGIC
# MAGIC Any node accepts the append and forwards it to the leader. The response is sent when a majority has
# MAGIC the record on disk. It contains the index of the record (`first_index`), the term and the leader.

# COMMAND ----------

with CommitlogClient(endpoint.split(","), log=log, token=token or None) as client:
    appended = client.append([Record('{"note": "hello from a notebook"}', key="notebook")])
display(spark.createDataFrame([appended.document]).select("first_index", "term", "leader", "durability"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## The same record in Spark
# MAGIC
# MAGIC `format("commitlog")` reads the log directly, as a batch or a stream. It needs no table.

# COMMAND ----------

access = {"token": token} if token else {}
records = spark.read.format("commitlog").options(endpoint=endpoint, log=log, **access)
note = records.option("startingIndex", appended.first_index).load()
display(note.select("index", "term", "timestamp", F.col("key").cast("string"), F.col("value").cast("string")))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Delay by hour of departure
# MAGIC
# MAGIC Each flight is one record whose value is a JSON object. The plot shows the delay by scheduled hour of
# MAGIC departure.

# COMMAND ----------

entries = read_table(spark, table_path(tables, log, ENTRIES))
flights = json_values(entries, "hour int, dep_delay double").where("hour IS NOT NULL")
display(delays_by_hour_figure(delays_by_hour(flights).collect()))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Effect of the killed leader
# MAGIC
# MAGIC Every leader records the last index that each peer has acknowledged. The dashed line is the committed
# MAGIC index: the records that a majority has and that readers see. It never decreases, not even when the
# MAGIC leader changes.

# COMMAND ----------

watermarks = read_table(spark, table_path(tables, log, WATERMARKS))
epochs = read_table(spark, table_path(tables, log, EPOCHS)).orderBy("epoch")
display(watermarks_figure(watermarks.orderBy("timestamp", "term", "seq", "peer").collect(), epochs.collect()))

# COMMAND ----------

display(epochs.drop("log"))

# COMMAND ----------

display(
    latest_watermarks(watermarks).orderBy("term", "peer").select("term", "peer", "watermark", "timestamp")
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The claim: each index once
# MAGIC
# MAGIC The table must contain the log's data records up to its last row: the same number of rows, each
# MAGIC index exactly once, and no row that the log does not have.

# COMMAND ----------

check = index_check(entries).collect()[0]
in_log = records.options(startingIndex="earliest", endingIndex=check["last"]).load()
missing = in_log.join(entries, "index", "left_anti").count()
assert check["doubles"] == 0, f"{check['doubles']} indexes are in the table twice"
assert missing == 0, f"{missing} records of the log are not in the table"
assert in_log.count() == check["rows"], "the table has rows that the log does not have"
print(f"{check['rows']:,} rows, indexes {check['first']:,} to {check['last']:,}: each record of the log once")
