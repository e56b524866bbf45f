# Databricks notebook source
# MAGIC %md
# MAGIC # Fail-over: masters, in-sync replicas and pauses of producers
# MAGIC
# MAGIC A log in controller mode has a master, which the controllers elect from the replicas that are in sync.
# MAGIC Each master opens an epoch. When a master fails, the controllers detect it by missing heartbeats, wait
# MAGIC until its lease has expired, and elect another master. Producers wait until then. This notebook shows
# MAGIC such a fail-over from the tables `events`, `sync_state_sets` and `epochs`, and checks it. It changes
# MAGIC nothing.
# MAGIC
# MAGIC Requirements: the tables of a log in controller mode, from `commitlog up --replication controller`,
# MAGIC with some appends and a master that was killed and started again. For a log in another mode the
# MAGIC notebook shows the pauses of appends between its leaders only.

# COMMAND ----------

dbutils.widgets.text("log", "default", "Name of the log")
dbutils.widgets.text("tables", "commitlog-data/tables", "Folder of the Delta tables")

# COMMAND ----------

from spark_jobs.analytics import failovers, gold
from spark_jobs.analytics.failover_plots import pauses_figure, story_figure
from spark_jobs.analytics.service_plots import service_figure
from spark_jobs.analytics.terms import terms_of
from spark_jobs.tables.views import create_views

create_views(spark, dbutils.widgets.get("tables"), dbutils.widgets.get("log"))
events, sets, epochs = (spark.table(name) for name in ("events", "sync_state_sets", "epochs"))
entries, watermarks = spark.table("entries"), spark.table("watermarks")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Decisions of the controllers
# MAGIC
# MAGIC Each node that keeps the log records every decision in its journal. `controller_index`, the index in
# MAGIC the controllers' own log, identifies a decision. In a row without a master no in-sync replica was
# MAGIC alive: the log then waits, and no record is lost.

# COMMAND ----------

elections = failovers.elections(events).cache()
by_term, reports = gold.records_by_term(entries), gold.reports_by_term(watermarks, epochs)
terms = terms_of(epochs.orderBy("epoch").collect(), by_term.collect(), reports.collect())
if elections.isEmpty():
    print("The controllers have decided nothing about this log: it is not in controller mode.")
display(elections)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Course of the fail-over
# MAGIC
# MAGIC At an election the set shrinks to the new master. It grows again as the other replicas catch up.
# MAGIC Records that all members of the set have are confirmed. Readers see only confirmed records, and the
# MAGIC confirm offset never decreases.

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
# MAGIC ## Pauses of the producers
# MAGIC
# MAGIC If producers append continuously, each outage is visible in the log as a pause between the
# MAGIC timestamps of two consecutive records. The dashed lines are elections. For a log in another mode the
# MAGIC plot shows when which node led: the time in which no leader has reported is red.

# COMMAND ----------

display(pauses_figure(pauses, reigns, terms) if reigns else service_figure(terms))

# COMMAND ----------

# MAGIC %md
# MAGIC ## The claim: each epoch has the one master that was elected for it
# MAGIC
# MAGIC Each epoch of the log was opened by the node that was elected for it. Every set contains its master,
# MAGIC set epochs increase, and the confirm offset does not decrease from set to set.

# COMMAND ----------

if elections.isEmpty():
    print("There are no elections by controllers to check.")
else:
    unknown, wrong = failovers.wrong_epochs(elections, epochs), failovers.wrong_sets(sets)
    unclean = elections.where("unclean").count()
    assert unknown.isEmpty(), f"an epoch whose leader was not elected for it: {unknown.first()}"
    assert unclean > 0 or wrong.isEmpty(), f"a set that violates an invariant: {wrong.first()}"
    print(f"{epochs.count()} epochs, {sets.count()} sets, {unclean} unclean elections")
    print("each epoch has the master that was elected for it")
