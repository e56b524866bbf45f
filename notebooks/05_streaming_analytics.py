# Databricks notebook source
# MAGIC %md
# MAGIC # Streaming analytics: delays of flights, and availability of the log
# MAGIC
# MAGIC The flights of the demo are records of a log with a schema, so the table `records` has them as typed
# MAGIC columns. This notebook maintains the delays by carrier and
# MAGIC hour (silver) with a watermark that follows the newest hour. A flight more than two hours before the
# MAGIC newest hour is late and is written to a separate table; it is not dropped. The notebook then
# MAGIC computes the availability of the log from its records (gold). It writes the two silver tables. They
# MAGIC can be deleted at any time; the next run writes the same rows. Delete them after a replay of dead
# MAGIC letters: the flights that it has moved to `records` are before the end of the two tables.
# MAGIC
# MAGIC Requirements: the tables of a log; `make demo ARGS=--keep` provides one with flights. For a log
# MAGIC without flights the notebook writes nothing, and shows its availability only.

# COMMAND ----------

dbutils.widgets.text("log", "default", "Name of the log")
dbutils.widgets.text("tables", "demo-data/tables", "Folder of the Delta tables")

# COMMAND ----------

import tempfile

from pyspark.sql import functions as F
from spark_jobs.analytics import gold
from spark_jobs.analytics.service_plots import carriers_figure, late_figure, service_figure
from spark_jobs.analytics.silver import DELAYS, LATE, DelaysJob, delays, flights_in
from spark_jobs.analytics.terms import TERM_COLUMNS, terms_of
from spark_jobs.tables.table import ENTRIES, EPOCHS, WATERMARKS, read_table, table_path

log, tables = dbutils.widgets.get("log"), dbutils.widgets.get("tables")
entries, epochs, watermarks = (table_path(tables, log, table) for table in (ENTRIES, EPOCHS, WATERMARKS))
parts, late = (table_path(tables, log, table) for table in (DELAYS, LATE))
flights = flights_in(spark, tables, log)
has_flights = flights is not None and not flights.isEmpty()

# COMMAND ----------

# MAGIC %md
# MAGIC ## The stream
# MAGIC
# MAGIC The stream processes the present rows of `records`; with `trigger="10 seconds"` it would continue. The
# MAGIC checkpoint can be deleted: the tables contain their own progress.

# COMMAND ----------

if has_flights:
    with tempfile.TemporaryDirectory() as checkpoint:
        DelaysJob(spark, tables, log).start(checkpoint)
else:
    print("The log has no flights: there is nothing to aggregate, and no table is written.")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Delay by carrier and hour
# MAGIC
# MAGIC The hour is that in which a flight left. Few flights are scheduled from 22 h to 4 h: many of those
# MAGIC that left then were scheduled for the evening, so their mean delay is high.

# COMMAND ----------

if has_flights:
    by_hour = delays(read_table(spark, parts)).withColumn("left", F.col("flights") - F.col("cancelled"))
    mean = F.try_divide(F.sum(F.col("mean") * F.col("left")), F.sum("left"))
    by_hour_of_day = by_hour.groupBy("carrier", F.hour("hour").alias("hour_of_day")).agg(
        F.sum("flights").alias("flights"), mean.alias("mean")
    )
    display(carriers_figure(by_hour_of_day.orderBy("carrier", "hour_of_day").collect()))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Late records
# MAGIC
# MAGIC A flight counts in the hour of its departure. A cancelled flight counts in its scheduled hour, but
# MAGIC its record arrives at the end of the day. The demo sends the flights day by day, so hardly any other
# MAGIC record is late. If late rows were dropped, as they are without a separate table, few cancellations
# MAGIC would be counted.

# COMMAND ----------

if has_flights:
    behind = F.floor((F.col("watermark").cast("long") - F.col("hour").cast("long")) / 3600)
    late_by_hour = (
        read_table(spark, late)
        .groupBy(behind.alias("hours_behind"))
        .agg(F.count("*").alias("flights"), F.count_if(F.col("dep_delay").isNull()).alias("cancelled"))
    )
    on_time = by_hour.agg(F.sum("flights")).collect()[0][0] or 0
    display(late_figure(late_by_hour.orderBy("hours_behind").collect(), on_time))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Availability of the log
# MAGIC
# MAGIC Between the last record of one leader and the first record of the next one no append succeeded. If
# MAGIC clients appended all the time, this pause is the length of the fail-over; otherwise the fail-over was
# MAGIC shorter. A leader also reports the watermarks of its peers, each minute if nothing changes, and stands
# MAGIC down when a majority does not answer. So the log was available between its reports, without records
# MAGIC too. The time without a record or report of any leader is red, and counts as not available.

# COMMAND ----------

by_term = gold.records_by_term(read_table(spark, entries))
opened = read_table(spark, epochs)
reports = gold.reports_by_term(read_table(spark, watermarks), opened)
terms = terms_of(opened.orderBy("epoch").collect(), by_term.collect(), reports.collect())
display(service_figure(terms))
display(spark.createDataFrame([tuple(term.values()) for term in terms], TERM_COLUMNS))

# COMMAND ----------

# MAGIC %md
# MAGIC ## The claim: no flight is missing

# COMMAND ----------

if has_flights:
    until = max(
        read_table(spark, path).agg(F.max("until_index")).collect()[0][0] or 0 for path in (parts, late)
    )
    known = flights.where(F.col("index") < until).count()
    kept_apart = read_table(spark, late).count()
    missing = known - on_time - kept_apart
    assert not missing, f"{missing} flights are missing: after a replay, delete {parts} and {late}"
    print(f"{on_time:,} flights in time and {kept_apart:,} late ones: all {known:,}, none dropped")
else:
    print("There are no flights to count.")
