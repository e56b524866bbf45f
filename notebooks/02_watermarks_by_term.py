# Databricks notebook source
# MAGIC %md
# MAGIC # Watermarks by term: replication progress and commits
# MAGIC
# MAGIC In a log in Raft mode a record is committed when a majority has it (D-24); in the other modes, when
# MAGIC the replicas in sync have it. Every leader records the last index that each peer has acknowledged,
# MAGIC and its committed index. This notebook reads the table `watermarks` and shows the lag of the
# MAGIC followers. It checks that every committed record of a log in Raft mode was held by a majority, and
# MAGIC that the committed index never decreased. It changes nothing.
# MAGIC
# MAGIC Requirements: the tables of any log; `make demo ARGS=--keep` provides them.

# COMMAND ----------

dbutils.widgets.text("log", "default", "Name of the log")
dbutils.widgets.text("tables", "demo-data/tables", "Folder of the Delta tables")

# COMMAND ----------

from spark_jobs.analytics import gold
from spark_jobs.analytics.plots import watermarks_figure
from spark_jobs.analytics.service_plots import lag_figure
from spark_jobs.analytics.terms import terms_of
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
# MAGIC
# MAGIC The title states for how long there was no record between two leaders. If clients appended all the
# MAGIC time, that is the length of the fail-over; in a log with few appends the fail-over was much shorter.

# COMMAND ----------

terms = terms_of(epochs.collect(), gold.records_by_term(spark.table("entries")).collect())
display(watermarks_figure(watermarks.orderBy("timestamp", "term", "seq", "peer").collect(), terms))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Lag of the peers
# MAGIC
# MAGIC The lag is the number of records that the leader has and the peer has not acknowledged. While a
# MAGIC leader has not heard from a peer, the peer's last known watermark counts: the lag of a dead node
# MAGIC grows (red crosses). Appends wait for a majority only: one slow peer of three does not delay them,
# MAGIC two slow peers do. In the table, `silent` counts the events of a term before the leader had heard from
# MAGIC the peer.

# COMMAND ----------

followers = gold.lag(watermarks).where("peer != node AND lag >= 0").orderBy("timestamp", "peer")
levels = gold.lag_by_peer(watermarks)
display(lag_figure(followers.collect(), levels.collect()))
display(levels)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The claim: a majority has every committed record, and the committed index never decreases

# COMMAND ----------

counted = f"{watermarks.select('term', 'node', 'seq').distinct().count():,} events"
backward = gold.backward_steps(watermarks)
assert backward.isEmpty(), f"the committed index of a term decreased: {backward.first()}"
if watermarks.isEmpty():
    print("No leader has recorded watermarks yet: there is nothing to check.")
elif watermarks.where("role = 'master'").isEmpty():
    uncovered = gold.uncovered_commits(watermarks, epochs, spark.table("events"))
    assert uncovered.isEmpty(), f"committed without a majority: {uncovered.first()}"
    print(f"{counted}: a majority had every committed record, and the committed index never decreased")
else:
    print(f"{counted}: the committed index never decreased")
    print("The log is not in Raft mode: no majority is needed. 03_failover.py checks the replicas in sync.")
