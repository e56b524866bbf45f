# Databricks notebook source
# MAGIC %md
# MAGIC # Append and read: from HTTP to a Delta table
# MAGIC
# MAGIC A record is appended over HTTP, replicated to a majority of three nodes, and written by Spark to a
# MAGIC Delta table that contains every index exactly once. This notebook appends one record and reads it
# MAGIC back. It then queries the tables: the records by time, the delays of the flights if the log has
# MAGIC those of the demo, and the effect of a killed leader. The only change is the appended record.
# MAGIC
# MAGIC Requirements: a running cluster and the tables of its log, for any log; `make demo ARGS=--keep`
# MAGIC provides both.

# COMMAND ----------

dbutils.widgets.text("endpoint", "http://127.0.0.1:8101", "Base URLs of nodes, comma-separated")
dbutils.widgets.text("log", "default", "Name of the log")
dbutils.widgets.text("tables", "demo-data/tables", "Folder of the Delta tables")

# COMMAND ----------

import os

from app.client import CommitlogClient, InvalidRequest, Record
from pyspark.sql import functions as F
from spark_jobs.analytics import gold
from spark_jobs.analytics.plots import delays_by_hour_figure, watermarks_figure
from spark_jobs.analytics.service_plots import rates_figure
from spark_jobs.analytics.silver import flights_in
from spark_jobs.analytics.terms import fail_overs_sentence, terms_of
from spark_jobs.session.requirements import require_cluster
from spark_jobs.source import CommitlogDataSource
from spark_jobs.tables.table import ENTRIES, EPOCHS, WATERMARKS, read_table, table_path
from spark_jobs.tables.transforms import (
    bin_width_s,
    delays_by_hour,
    index_check,
    latest_watermarks,
    records_by_time,
)
from spark_jobs.tables.views import require_tables

spark.dataSource.register(CommitlogDataSource)
endpoint, log, tables = (dbutils.widgets.get(name) for name in ("endpoint", "log", "tables"))
token = os.environ.get("COMMITLOG_TOKEN", "")  # a widget would show it
require_cluster(endpoint, token or None)
require_tables(spark, tables, log)

# COMMAND ----------

# MAGIC %md
# MAGIC ## One append
# MAGIC
# MAGIC Any node accepts the append and forwards it to the leader. The response is sent when a majority has
# MAGIC the record on disk. It contains the index of the record (`first_index`), the term and the leader.
# MAGIC A log whose schema refuses the record stays as it is: the next cell then reads its newest record.

# COMMAND ----------

with CommitlogClient(endpoint.split(","), log=log, token=token or None) as client:
    try:
        appended = client.append([Record('{"note": "hello from a notebook"}', key="notebook")])
    except InvalidRequest as refused:
        if refused.code != "schema-mismatch":
            raise
        print(f"Nothing was appended. {refused}")
        newest = client.read(last=1).records
        shown_from = newest[0]["index"] if newest else client.tail()["next_index"]
    else:
        shown_from = appended.first_index
        answer = spark.createDataFrame([appended.document])
        display(answer.select("first_index", "term", "leader", "durability"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## The record in Spark
# MAGIC
# MAGIC `format("commitlog")` reads the log directly, as a batch or a stream. It needs no table.

# COMMAND ----------

access = {"token": token} if token else {}
records = spark.read.format("commitlog").options(endpoint=endpoint, log=log, **access)
note = records.option("startingIndex", shown_from).load()
display(note.select("index", "term", "timestamp", F.col("key").cast("string"), F.col("value").cast("string")))

# COMMAND ----------

# MAGIC %md
# MAGIC ## The records by time
# MAGIC
# MAGIC The table `entries` contains all records that the job has written so far, whatever their values are.

# COMMAND ----------

entries = read_table(spark, table_path(tables, log, ENTRIES))
width_s = bin_width_s(entries)
display(rates_figure(records_by_time(entries, width_s).collect(), width_s))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Delay by hour of departure
# MAGIC
# MAGIC In the demo each flight is one record whose value is a JSON object. Its log has a schema, so the job
# MAGIC also writes each flight as typed columns to the table `records`, and a record that is not a flight to
# MAGIC `dead_letters`. The plot shows the delay by scheduled hour of departure.

# COMMAND ----------

flights = flights_in(spark, tables, log)
if flights is None or flights.isEmpty():
    print(
        "The log has no flights: there are no delays to show. Replace this cell by a query of your records."
    )
else:
    display(delays_by_hour_figure(delays_by_hour(flights).collect()))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Effect of a killed leader
# MAGIC
# MAGIC Every leader records the last index that each peer has acknowledged, at most twice a second. The
# MAGIC dashed line is the committed index: the records that a majority has and that readers see. It never
# MAGIC decreases, not even when the leader changes; a new leader knows it once the first record of its term
# MAGIC is committed. The title states for how long there was no record: the
# MAGIC time from the last record of one leader to the first record of the next one. If clients appended all
# MAGIC the time, that is the length of the fail-over; otherwise the fail-over was shorter.

# COMMAND ----------

watermarks = read_table(spark, table_path(tables, log, WATERMARKS))
epochs = read_table(spark, table_path(tables, log, EPOCHS)).orderBy("epoch")
terms = terms_of(epochs.collect(), gold.records_by_term(entries).collect())
display(watermarks_figure(watermarks.orderBy("timestamp", "term", "seq", "peer").collect(), terms))
print(fail_overs_sentence(terms))

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
if check["rows"] == 0:
    print("The table has no rows yet: there is nothing to compare. Run the job that writes it.")
else:
    with CommitlogClient(endpoint.split(","), log=log, token=token or None) as client:
        first = max(check["first"], client.tail()["begin_index"])  # the log may have been trimmed since
    rows = entries.where(F.col("index") >= first)
    in_log = records.options(startingIndex=first, endingIndex=check["last"]).load()
    missing = in_log.join(rows, "index", "left_anti").count()
    assert check["doubles"] == 0, f"{check['doubles']} indexes are in the table twice"
    assert missing == 0, f"{missing} records of the log are not in the table"
    assert in_log.count() == rows.count(), "the table has rows that the log does not have"
    print(f"{check['rows']:,} rows, indexes {first:,} to {check['last']:,}: each record of the log once")
