# Databricks notebook source
# MAGIC %md
# MAGIC # Streaming analytics: delays as they come, and how well the log was served
# MAGIC
# MAGIC The flights of the demo stream through the log. This notebook keeps delays by carrier and hour up to
# MAGIC date (silver), with a watermark that follows the newest hour: a flight that comes more than two hours
# MAGIC behind it is late, and goes into a table of its own instead of vanishing. Then it asks the nodes'
# MAGIC journals how well the log was served (gold). It writes the two silver tables, which may be deleted at
# MAGIC any time and come back the same.
# MAGIC
# MAGIC It needs the tables of a log with flights: `make demo ARGS=--keep` leaves some.

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
# MAGIC Up to what is in `entries` now; with `trigger="10 seconds"` it would go on. The checkpoint is scratch:
# MAGIC the tables say how far they go.

# COMMAND ----------

with tempfile.TemporaryDirectory() as checkpoint:
    DelaysJob(spark, tables, log).start(checkpoint)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Which carrier is late at which hour?

# COMMAND ----------

by_hour = delays(read_table(spark, parts)).withColumn("left", F.col("flights") - F.col("cancelled"))
by_hour_of_day = by_hour.groupBy("carrier", F.hour("hour").alias("hour_of_day")).agg(
    F.sum("flights").alias("flights"), (F.sum(F.col("mean") * F.col("left")) / F.sum("left")).alias("mean")
)
display(carriers_figure(by_hour_of_day.orderBy("carrier", "hour_of_day").collect()))

# COMMAND ----------

# MAGIC %md
# MAGIC ## What came too late?
# MAGIC
# MAGIC A flight counts in the hour in which it left. One that was cancelled never left: it counts in its
# MAGIC scheduled hour, but the data tell of it at the end of the day. Were late rows dropped, as they are
# MAGIC without a table of their own, hardly any cancellation would be counted.

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
# MAGIC ## How well was the log served?
# MAGIC
# MAGIC A leader serves from its first news that its own opening record is committed to its last news; between
# MAGIC two of them nobody could append.

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
