# Databricks notebook source
# MAGIC %md
# MAGIC # Fail-over: who was master, who was in sync, and who had to wait?
# MAGIC
# MAGIC A log in controller mode has a master, which the controllers elect from the replicas that are in sync.
# MAGIC Each master opens an epoch. When it dies, the controllers notice its silence, wait until its lease has
# MAGIC surely run out, and elect another one; producers wait that long. This notebook tells such a story from
# MAGIC the tables `events`, `sync_state_sets` and `epochs`, and checks it. It changes nothing.
# MAGIC
# MAGIC It needs the tables of a log in controller mode: `commitlog up --replication controller`, some
# MAGIC appends, and a master that was killed and started again.

# COMMAND ----------

dbutils.widgets.text("log", "default", "Name of the log")
dbutils.widgets.text("tables", "commitlog-data/tables", "Folder of the Delta tables")

# COMMAND ----------

from spark_jobs.analytics import failovers
from spark_jobs.analytics.failover_plots import pauses_figure, story_figure
from spark_jobs.tables.views import create_views

create_views(spark, dbutils.widgets.get("tables"), dbutils.widgets.get("log"))
events, sets, epochs = (spark.table(name) for name in ("events", "sync_state_sets", "epochs"))
entries, watermarks = spark.table("entries"), spark.table("watermarks")

# COMMAND ----------

# MAGIC %md
# MAGIC ## What the controllers decided
# MAGIC
# MAGIC Each node that keeps the log writes down every decision, so it stands in the journals several times.
# MAGIC `controller_index`, its place in the controllers' own log, tells them apart. A row without a master
# MAGIC says that nobody in sync was alive: then the log waits, and loses nothing.

# COMMAND ----------

elections = failovers.elections(events).cache()
display(elections)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The story
# MAGIC
# MAGIC The set shrinks to the new master at an election, and grows again as the others catch up. What all of
# MAGIC the set hold is confirmed: that is what readers see, and it never goes back.

# COMMAND ----------

reigns = failovers.reigns(elections, events).collect()
pauses = failovers.pauses(entries).collect()
memberships = failovers.memberships(sets, events).collect()
confirmed = failovers.confirmed(watermarks, entries, sets).collect()
display(story_figure(reigns, memberships, confirmed, pauses))

# COMMAND ----------

# MAGIC %sql
# MAGIC SELECT s.epoch, e.leader, e.start_index, s.set_epoch, s.members, s.confirm_offset, s.timestamp
# MAGIC FROM sync_state_sets s LEFT JOIN epochs e USING (epoch) ORDER BY s.epoch, s.set_epoch

# COMMAND ----------

# MAGIC %md
# MAGIC ## What producers noticed
# MAGIC
# MAGIC Whoever appends all the time leaves each silence in the log, as a pause between the times of two
# MAGIC neighbouring records. The dashed lines are elections.

# COMMAND ----------

display(pauses_figure(pauses, reigns))

# COMMAND ----------

# MAGIC %md
# MAGIC ## The claim: each epoch has the one master that was elected for it
# MAGIC
# MAGIC Each epoch of the log was opened by the node that an election gave it to. No set is without its
# MAGIC master, set epochs rise, and the confirm offset does not fall from set to set.

# COMMAND ----------

strangers, wrong = failovers.wrong_epochs(elections, epochs), failovers.wrong_sets(sets)
unclean = elections.where("unclean").count()
assert strangers.isEmpty(), f"an epoch that no election gave to its master: {strangers.first()}"
assert unclean > 0 or wrong.isEmpty(), f"a set that must not be: {wrong.first()}"
print(f"{epochs.count()} epochs, {sets.count()} sets, {unclean} unclean elections")
print("each epoch has the master that was elected for it")
