# Databricks notebook source
# MAGIC %md
# MAGIC # From an append to a table: the flights of 2013
# MAGIC
# MAGIC A record was appended through REST, replicated by Raft, and written to Delta by Spark. This notebook follows
# MAGIC that road with the flights that left New York in 2013, each of them one record, and with the leader of the log
# MAGIC killed half-way. It appends one record of its own, and changes nothing else.
# MAGIC
# MAGIC It reads the Delta tables `entries`, `epochs` and `watermarks`, and the log itself.

# COMMAND ----------

dbutils.widgets.text("tables", "demo-data/tables", "Folder of the Delta tables")
dbutils.widgets.text("endpoint", "http://127.0.0.1:8101", "Any node of the cluster")
dbutils.widgets.text("log", "default", "Name of the log")

tables = f"{dbutils.widgets.get('tables')}/{dbutils.widgets.get('log')}"
log = {"endpoint": dbutils.widgets.get("endpoint"), "log": dbutils.widgets.get("log")}

# COMMAND ----------

# MAGIC %md
# MAGIC ## One append, and where it stands
# MAGIC The answer comes when a majority of the nodes has the record on disk. `index` is its place for ever.

# COMMAND ----------

import json

from app.client import CommitlogClient
from spark_jobs.source import CommitlogDataSource

with CommitlogClient(log["endpoint"].split(","), log=log["log"]) as client:
    answer = client.append([{"key": "notebook", "value": "hello from a notebook"}])

spark.dataSource.register(CommitlogDataSource)
placed = spark.read.format("commitlog").options(**log).option("startingIndex", answer["first_index"]).load()
display(placed.selectExpr("index", "term", "offset", "timestamp", "string(key) AS key", "string(value) AS value"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Who led, and from which index on?
# MAGIC A new term opens with every election. The kill of the leader shows as the second row.

# COMMAND ----------

for name in ("entries", "epochs", "watermarks"):
    spark.read.format("delta").load(f"{tables}/{name}").createOrReplaceTempView(name)

# COMMAND ----------

# MAGIC %sql
# MAGIC SELECT epoch, leader, started, start_index, end_index, end_index - start_index + 1 AS records
# MAGIC FROM epochs ORDER BY epoch

# COMMAND ----------

# MAGIC %md
# MAGIC ## How far had each node followed its leader?
# MAGIC Each line is one node, as its leader knew it. The killed node stops, the others go on under the next term, and the
# MAGIC line that starts again is the killed node that catches up.

# COMMAND ----------

from matplotlib import pyplot as plt

marks = spark.table("watermarks").orderBy("timestamp", "seq").toPandas()
began = marks["timestamp"].min()
marks["seconds"] = (marks["timestamp"] - began).dt.total_seconds()

figure, axes = plt.subplots(figsize=(10, 5))
for color, (peer, rows) in zip(plt.get_cmap("tab10").colors, marks.groupby("peer"), strict=False):
    held = rows[rows["watermark"] >= 0]
    axes.plot(held["seconds"], held["watermark"], marker="o", markersize=3, color=color, label=peer)
for term, rows in marks.groupby("term"):
    opened = rows["seconds"].min()
    axes.axvline(opened, color="gray", linestyle="--", linewidth=1)
    axes.annotate(f" term {term}: {rows['node'].iloc[0]} leads", (opened, 0.97), rotation=90,
                  xycoords=("data", "axes fraction"), ha="left", va="top", color="gray")
changes = marks["term"].nunique() - 1
axes.set_title(f"{marks['watermark'].max() + 1:,} records on every node, through {changes} change(s) of the leader")
axes.set_xlabel("time since the first term opened, s")
axes.set_ylabel("watermark: last acknowledged index")
axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
axes.legend(title="node", loc="lower right")
axes.grid(alpha=0.3)

# COMMAND ----------

# MAGIC %md
# MAGIC ## At which hour do flights leave late?
# MAGIC The value of each record is a row of the flights as JSON. Cancelled flights have no delay.

# COMMAND ----------

from spark_jobs.transforms import delays_by_hour, json_values

flights = json_values(spark.table("entries"), "hour INT, dep_delay DOUBLE, carrier STRING").where("hour IS NOT NULL")
hours = delays_by_hour(flights).where("median IS NOT NULL").toPandas()
worst = hours.loc[hours["late"].idxmax()]

figure, axes = plt.subplots(figsize=(10, 5))
axes.bar(hours["hour"], hours["late"], color="#d8e2ec", label="one flight in ten leaves later than this")
axes.plot(hours["hour"], hours["median"], color="#1d3557", marker="o", label="half of the flights leave later than this")
axes.axhline(0, color="black", linewidth=0.8)
axes.set_title(f"Delays pile up over the day: at {worst['hour']:.0f} h one flight in ten is over {worst['late']:.0f} min late")
axes.set_xlabel("scheduled hour of departure")
axes.set_ylabel("departure delay, min")
axes.set_xticks(hours["hour"])
axes.legend(loc="upper left")
axes.grid(axis="y", alpha=0.3)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Does the table hold each record exactly once?

# COMMAND ----------

from spark_jobs.transforms import index_check

check = index_check(spark.table("entries"))
display(check)
found = check.first()
assert found["doubles"] == 0, f"{found['doubles']} indexes stand twice"
print(f"{found['rows']:,} records, {found['indexes']:,} indexes: each once")
