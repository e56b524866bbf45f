# Databricks notebook source
# MAGIC %md
# MAGIC # Exactly once, and time travel by log
# MAGIC
# MAGIC The table `entries` contains each data record of the log exactly once, even if the job that writes it
# MAGIC fails at any point. This notebook shows the reason: every commit claims the index at which the table
# MAGIC ended, and Delta refuses a claim that was used before. The notebook then opens all tables at a point
# MAGIC of the log, and compares the log and the table by their digests. It tries to write a range a second
# MAGIC time; it changes nothing.
# MAGIC
# MAGIC Requirements: a running cluster and the tables of its log, for any log; `make demo ARGS=--keep`
# MAGIC provides both.

# COMMAND ----------

dbutils.widgets.text("endpoint", "http://127.0.0.1:8101", "Base URLs of nodes, comma-separated")
dbutils.widgets.text("log", "default", "Name of the log")
dbutils.widgets.text("tables", "demo-data/tables", "Folder of the Delta tables")

# COMMAND ----------

import os

from app.client import NotFound
from pyspark.sql import functions as F
from spark_jobs.analytics.service_plots import commits_figure, cuts_figure
from spark_jobs.materialize.entries import APPLICATION
from spark_jobs.session.requirements import require_cluster
from spark_jobs.tables.claims import append_once
from spark_jobs.tables.table import ENTRIES, EPOCHS, identifier, read_table, table_path
from spark_jobs.tables.transforms import commit_ranges, index_check
from spark_jobs.tables.travel import at
from spark_jobs.tables.views import require_tables
from spark_jobs.verify import verify_tables

endpoint, log, tables = (dbutils.widgets.get(name) for name in ("endpoint", "log", "tables"))
token = os.environ.get("COMMITLOG_TOKEN")  # a widget would show it
require_cluster(endpoint, token)
require_tables(spark, tables, log)
path = table_path(tables, log, ENTRIES)
entries = read_table(spark, path)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Each commit continues at the end of the previous one
# MAGIC
# MAGIC A commit claims the index after the table's last row. If a range was written twice or lost, the number
# MAGIC of rows that a commit wrote would differ from the number of rows between two claims in the table.

# COMMAND ----------

history = spark.sql(f"DESCRIBE HISTORY {identifier(path)}")
commits = commit_ranges(history, entries)
display(commits_figure(commits.collect()))
display(commits)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The same range again: refused
# MAGIC
# MAGIC A driver that was killed after its commit, or paused while another driver continued, appends the last
# MAGIC range again with its old claim. This cell does the same.

# COMMAND ----------

last = max(commits.collect(), key=lambda row: row["version"], default=None)
if last is None:
    print("The job has not written a range yet: there is nothing to repeat.")
else:
    again = entries.where(F.col("index") >= last["first_index"])
    claimed = append_once(
        again,
        path,
        application=APPLICATION,
        claim=last["first_index"],
        position="index",
        note={"first_index": last["first_index"], "until_index": last["until_index"]},
    )
    assert claimed is None, "a range was written twice"
    print(f"the claim of index {last['first_index']:,} is taken: {again.count():,} rows were refused")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The tables at the end of each epoch
# MAGIC
# MAGIC `at` requests the versions of all tables at a point of the log, and opens them. `entries` ends exactly
# MAGIC at that point, even if a commit contains later records (`exact` is then false). The open epoch is
# MAGIC shown up to the table's last row. Of more than 8 epochs, the last 8 are shown.

# COMMAND ----------

newest = entries.agg(F.max("index")).collect()[0][0]
epochs = read_table(spark, table_path(tables, log, EPOCHS)).orderBy(F.desc("epoch")).limit(8).collect()
cuts = []
for epoch in reversed(epochs if newest is not None else []):
    end_index = newest if epoch["end_index"] is None else min(newest, epoch["end_index"])
    try:
        cut = at(spark, endpoint, log, token=token, index=end_index)
    except NotFound as error:  # its versions are no longer kept, or [tables] path of the service is not set
        print(f"epoch {epoch['epoch']}: {error}")
        continue
    cuts.append(
        {
            "epoch": epoch["epoch"],
            "leader": epoch["leader"],
            "rows": cut["entries"].count(),
            "version": cut.versions["entries"],
            "exact": cut.exact,
            "is_open": epoch["end_index"] is None,
        }
    )
display(cuts_figure(cuts))
CUTS = "epoch long, leader string, is_open boolean, rows long, version long, exact boolean"
display(spark.createDataFrame(cuts, CUTS))

# COMMAND ----------

# MAGIC %md
# MAGIC ## The claim: log and table contain the same records
# MAGIC
# MAGIC The digests of the records are summed by blocks of 10 000 indexes: by the service from the log's
# MAGIC files, and by Spark from the table's files. The sums must be equal.

# COMMAND ----------

check = index_check(entries).collect()[0]
assert commits.where("written != held").isEmpty(), "a commit wrote other rows than the table has"
assert check["doubles"] == 0, f"{check['doubles']} indexes are in the table twice"
if newest is None:
    print("The table has no rows yet: there is nothing to compare.")
else:
    verified = verify_tables(spark, endpoint, log, token)
    assert verified.equal, str(verified)
    print(f"{check['rows']:,} rows, {check['doubles']} doubles; {verified}")
