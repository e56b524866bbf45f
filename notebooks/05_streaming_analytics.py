# Databricks notebook source
# MAGIC %md
# MAGIC # Streaming analytics: delays of flights, and availability of the log
# MAGIC
# MAGIC The flights of the demo are records of the log. This notebook maintains the delays by carrier and hour
# MAGIC (silver) with a watermark that follows the newest hour. A flight more than two hours before the
# MAGIC newest hour is late and is written to a separate table; it is not dropped. The notebook then computes
# MAGIC the availability of the log from the nodes' journals (gold). It writes the two silver tables. They can
# MAGIC be deleted at any time; the next run writes the same rows.
# MAGIC
# MAGIC Requirements: the tables of a log with flights; `make demo ARGS=--keep` provides them.

# COMMAND ----------

dbutils.widgets.text("log", "default", "Name of the log")
dbutils.widgets.text("tables", "demo-data/tables", "Folder of the Delta tables")

# COMMAND ----------

import tempfile

from pyspark.sql import functions as F
from spark_jobs.analytics import gold
from spark_jobs.analytics.service_plots import carriers_figure, late_figure, service_figure
from spark_jobs.analytics.silver import DELAYS, LATE, DelaysJob, delays, flights_of
from spark_jobs.tables.table import ENTRIES, EPOCHS, WATERMARKS, read_table, table_path

log, tables = dbutils.widgets.get("log"), dbutils.widgets.get("tables")
entries, watermarks, epochs, parts, late = (
    table_path(tables, log, table) for table in (ENTRIES, WATERMARKS, EPOCHS, DELAYS, LATE)
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The stream
# MAGIC
# MAGIC The stream processes the present rows of `entries`; with `trigger="10 seconds"` it would continue. The
# MAGIC checkpoint can be deleted: the tables contain their own progress.

# COMMAND ----------

with tempfile.TemporaryDirectory() as checkpoint:
    DelaysJob(spark, tables, log).start(checkpoint)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Delay by carrier and hour

# COMMAND ----------

by_hour = delays(read_table(spark, parts)).withColumn("left", F.col("flights") - F.col("cancelled"))
by_hour_of_day = by_hour.groupBy("carrier", F.hour("hour").alias("hour_of_day")).agg(
    F.sum("flights").alias("flights"), (F.sum(F.col("mean") * F.col("left")) / F.sum("left")).alias("mean")
)
display(carriers_figure(by_hour_of_day.orderBy("carrier", "hour_of_day").collect()))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Late records
# MAGIC
# MAGIC A flight counts in the hour of its departure. A cancelled flight counts in its scheduled hour, but its
# MAGIC record arrives at the end of the day. If late rows were dropped, as they are without a separate table,
# MAGIC hardly any cancellation would be counted.

# COMMAND ----------

behind = F.floor((F.col("watermark").cast("long") - F.col("hour").cast("long")) / 3600).alias("hours_behind")
late_by_hour = (
    read_table(spark, late)
    .groupBy(behind)
    .agg(F.count("*").alias("flights"), F.count_if(F.col("dep_delay").isNull()).alias("cancelled"))
)
on_time = by_hour.agg(F.sum("flights")).collect()[0][0]
display(late_figure(late_by_hour.orderBy("hours_behind").collect(), on_time))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Availability of the log
# MAGIC
# MAGIC A leader serves from its first event with its opening record committed to its last event. Between two
# MAGIC leaders no append was possible.

# COMMAND ----------

terms = gold.terms(read_table(spark, watermarks), read_table(spark, epochs))
display(service_figure(terms.collect(), gold.availability(terms).collect()[0]))
display(terms)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The claim: no flight is missing

# COMMAND ----------

flights = flights_of(read_table(spark, entries)).count()
kept_apart = read_table(spark, late).count()
assert on_time + kept_apart == flights, f"{flights - on_time - kept_apart} flights are missing"
print(f"{on_time:,} flights in time and {kept_apart:,} late ones: all {flights:,}, none dropped")
