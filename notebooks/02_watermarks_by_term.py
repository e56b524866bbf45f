# Databricks notebook source
# MAGIC %md
# MAGIC # Watermarks by term: replication progress and commits
# MAGIC
# MAGIC A record is committed when a majority has it (D-24). Every leader records the last index that each
# MAGIC peer has acknowledged, and its committed index. This notebook reads the table `watermarks` and shows
# MAGIC the lag of the followers. It checks that every committed record was held by a majority, and that the
# MAGIC committed index never decreased. It changes nothing.
# MAGIC
# MAGIC Requirements: the tables of a log; `make demo ARGS=--keep` provides them.

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
# MAGIC ## Last watermarks of each term
# MAGIC
# MAGIC One row per term and peer: the last watermark that the leader recorded. It is -1 until the leader
# MAGIC receives an acknowledgement of the peer.

# COMMAND ----------

# MAGIC %sql
# MAGIC SELECT term, node AS leader, peer, watermark, committed_index, end_index, timestamp
# MAGIC FROM latest_watermarks ORDER BY term, peer

# COMMAND ----------

# MAGIC %md
# MAGIC ## Progress of the peers

# COMMAND ----------

display(watermarks_figure(watermarks.orderBy("timestamp", "term", "seq", "peer").collect(), epochs.collect()))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Lag of the peers
# MAGIC
# MAGIC The lag is the number of records that the leader has and the peer has not acknowledged. Appends wait
# MAGIC for a majority only: one slow peer of three does not delay them, two slow peers do.

# COMMAND ----------

followers = gold.lag(watermarks).where("peer != node AND lag >= 0").orderBy("timestamp", "peer")
levels = gold.lag_by_peer(watermarks)
display(lag_figure(followers.collect(), levels.collect()))
display(levels)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The claim: a majority has every committed record, and the committed index never decreases

# COMMAND ----------

news = watermarks.select("term", "node", "seq").distinct().count()
uncovered = gold.uncovered_commits(watermarks, epochs, spark.table("events"))
backward = gold.backward_steps(watermarks)
assert uncovered.isEmpty(), f"a leader called committed what a majority did not have: {uncovered.first()}"
assert backward.isEmpty(), f"the committed index of a term went back: {backward.first()}"
print(f"{news:,} news of {epochs.count()} terms: committed is what a majority has, and never went back")
