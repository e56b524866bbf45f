# Databricks notebook source
# MAGIC %md
# MAGIC # Watermarks by term: who had what, and when was it safe?
# MAGIC
# MAGIC A record is committed when a majority has it (D-24). Every leader writes down how far each peer has
# MAGIC acknowledged, and what it calls committed. This notebook reads the table `watermarks`, shows how far
# MAGIC the followers were behind, and checks that no leader ever called committed what a majority did not
# MAGIC have, and that the committed index never went back. It changes nothing.
# MAGIC
# MAGIC It needs the tables of a log: `make demo ARGS=--keep` leaves some.

# COMMAND ----------

dbutils.widgets.text("log", "default", "Name of the log")
dbutils.widgets.text("tables", "demo-data/tables", "Folder of the Delta tables")

# COMMAND ----------

from spark_jobs.analytics import gold
from spark_jobs.analytics.plots import watermarks_figure
from spark_jobs.analytics.service_plots import lag_figure
from spark_jobs.tables.views import create_views

views = create_views(spark, dbutils.widgets.get("tables"), dbutils.widgets.get("log"))
watermarks, epochs = spark.table("watermarks"), spark.table("epochs").orderBy("epoch")
print(", ".join(views))

# COMMAND ----------

# MAGIC %md
# MAGIC ## The newest word of each term
# MAGIC
# MAGIC One row a term and peer: the last that its leader said of it. A peer that was away stands at -1 until
# MAGIC the leader has heard from it.

# COMMAND ----------

# MAGIC %sql
# MAGIC SELECT term, node AS leader, peer, watermark, committed_index, end_index, timestamp
# MAGIC FROM latest_watermarks ORDER BY term, peer

# COMMAND ----------

# MAGIC %md
# MAGIC ## How did the peers follow?

# COMMAND ----------

display(watermarks_figure(watermarks.orderBy("timestamp", "term", "seq", "peer").collect(), epochs.collect()))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Who was behind, and by how much?
# MAGIC
# MAGIC Lag is what the leader held at that moment and the peer had not acknowledged. Appends wait for a
# MAGIC majority only: one slow peer of three costs nobody time, but two of them would.

# COMMAND ----------

followers = gold.lag(watermarks).where("peer != node AND lag >= 0").orderBy("timestamp", "peer")
levels = gold.lag_by_peer(watermarks)
display(lag_figure(followers.collect(), levels.collect()))
display(levels)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The claim: committed is what a majority has, and it never goes back

# COMMAND ----------

news = watermarks.select("term", "node", "seq").distinct().count()
uncovered = gold.uncovered_commits(watermarks, epochs, spark.table("events"))
backward = gold.backward_steps(watermarks)
assert uncovered.isEmpty(), f"a leader called committed what a majority did not have: {uncovered.first()}"
assert backward.isEmpty(), f"the committed index of a term went back: {backward.first()}"
print(f"{news:,} news of {epochs.count()} terms: committed is what a majority has, and never went back")
