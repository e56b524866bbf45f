# Databricks notebook source
# MAGIC %md
# MAGIC # Typed tables: from JSON bytes to columns, and a faulty producer
# MAGIC
# MAGIC The value of a record is a sequence of bytes. With a schema, the job also writes each record as typed
# MAGIC columns to the table `records`. A record that does not match is a row of `dead_letters`, with the
# MAGIC reason. This notebook simulates a shop with three producers. It infers a schema from their records,
# MAGIC adds a column while they write, finds a faulty release by its dead letters, reads the tables as they
# MAGIC were before that release, and replays the dead letters after a change of the schema.
# MAGIC
# MAGIC Requirements: a running cluster; `make demo ARGS=--keep` provides one. The notebook creates a log of
# MAGIC its own, runs the job for it, and deletes the log at the end. Its tables stay. One job at a time
# MAGIC writes the tables of a log: a job that follows all logs, such as that of the demo, reports
# MAGIC `COMMITLOG_LEASE_LOST` for this one meanwhile, and continues with its others.

# COMMAND ----------

dbutils.widgets.text("endpoint", "http://127.0.0.1:8101", "Base URLs of nodes, comma-separated")
dbutils.widgets.text("log", "orders", "Beginning of the name of the new log")
dbutils.widgets.text("tables", "demo-data/tables", "Folder of the Delta tables")

# COMMAND ----------

import json
import os
import random
import secrets
import tempfile
from pathlib import Path

from app.client import CommitlogClient, Record
from app.client.operations import Operations
from app.schemas import propose
from pyspark.sql import functions as F
from spark_jobs.analytics.typed_plots import amounts_figure, producers_figure, versions_figure
from spark_jobs.materialize.replay import DeadLetterReplay
from spark_jobs.run import MaterializeConfig, materialize
from spark_jobs.session.requirements import require_cluster
from spark_jobs.source.log_reads import LogReads
from spark_jobs.tables.table import CURRENT, RECORDS, identifier, table_path
from spark_jobs.tables.views import create_views
from spark_jobs.typed.invariants import misplaced

endpoint, tables = dbutils.widgets.get("endpoint"), dbutils.widgets.get("tables")
log = f"{dbutils.widgets.get('log')}-typed-{secrets.token_hex(3)}"
token = os.environ.get("COMMITLOG_TOKEN")  # a widget would show it
require_cluster(endpoint, token)
client = CommitlogClient(endpoint.split(","), log=log, token=token)
Operations(client).create_log({"name": log})
dice = random.Random(6)


def order(number, producer, **more):
    """One order as a JSON object. A later record with the same number replaces it in `current`."""
    amount = round(dice.lognormvariate(3.6, 0.5), 2)
    customer = f"c{dice.randrange(200)}"
    return {"order": number, "producer": producer, "customer": customer, "amount": amount, **more}


def append(orders):
    """Append orders in batches of 100, as three shops would do it."""
    records = [Record(json.dumps(each), key=str(each["order"])) for each in orders]
    for first in range(0, len(records), 100):
        client.append(records[first : first + 100])


def follow():
    """Bring the tables up to the end of the log. `commitlog materialize` does this without end."""
    with tempfile.TemporaryDirectory() as scratch:
        progress = Path(scratch) / "progress.json"
        materialize(
            MaterializeConfig(
                endpoint=endpoint,
                tables=tables,
                logs=(log,),
                token=token,
                available_now=True,
                progress=progress,
            ),
            spark=spark,
        )


# COMMAND ----------

# MAGIC %md
# MAGIC ## Records without a schema
# MAGIC
# MAGIC Three producers append orders. Without a schema every query must parse the bytes, and each may do it
# MAGIC differently. `propose` makes a JSON Schema from the newest records, as `commitlog schema infer` does.

# COMMAND ----------

append(order(number, dice.choice(["web 1.4", "app 2.0", "till 7.1"])) for number in range(400))
page = client.read(last=200, limit=200)
proposal = json.loads(propose([record["value"].encode() for record in page.records]).definition)
print(page.records[-1]["value"])
print(json.dumps(proposal, indent=2))

# COMMAND ----------

# MAGIC %md
# MAGIC ## A schema, and a change of it in mid-stream
# MAGIC
# MAGIC The schema is a control record of the log: every reader knows from which record on it applies. The
# MAGIC records before the first version are read with that one. Web 1.5 begins to send a field that the
# MAGIC schema does not have, `coupon`. Nothing is lost: such fields are in the column `_rescued`. Version 2
# MAGIC adds the column; the files that are there do not change.

# COMMAND ----------

first = client.put_schema(proposal, key_columns=["order"])


def of_the_day(numbers, app):
    """Return orders of all producers; web 1.5 gives a coupon with each third order."""
    for number in numbers:
        producer = dice.choice(["web 1.5", app, "till 7.1"])
        coupon = {"coupon": f"SAVE{dice.randrange(1, 4)}0"} if producer == "web 1.5" else {}
        yield order(number, producer, **(coupon if dice.random() < 1 / 3 else {}))


append(of_the_day(range(400, 700), "app 2.0"))
with_coupon = {**proposal, "properties": {**proposal["properties"], "coupon": {"type": "string"}}}
second = client.put_schema(with_coupon, key_columns=["order"])
append(of_the_day(range(700, 1_000), "app 2.0"))
follow()
_ = create_views(spark, tables, log)

# COMMAND ----------

# MAGIC %sql
# MAGIC SELECT _schema_version, count(*) AS records, min(_index) AS first_index, max(_index) AS last_index,
# MAGIC        count(coupon) AS coupons, count(_rescued) AS rescued, first(_rescued, true) AS example
# MAGIC FROM records GROUP BY _schema_version ORDER BY _schema_version

# COMMAND ----------

# MAGIC %md
# MAGIC ## A new release: records that do not match
# MAGIC
# MAGIC Release 2.1 of the app replaces 2.0. It lets guests order, and sends `null` as their customer. The
# MAGIC schema requires a text. The appends succeed, because this schema has `on_invalid: dead_letter`; with
# MAGIC `reject` the app would get an error with the number of the record and the field.

# COMMAND ----------


def with_guests(orders):
    """Return the orders with the faults of app 2.1."""
    for each in orders:
        if each["producer"] == "app 2.1":
            guest = dice.random() < 0.5
            cents = round(100 * each["amount"])
            each = {**each, "amount": cents, "customer": None if guest else each["customer"]}
        yield each


append(with_guests(of_the_day(range(1_000, 1_400), "app 2.1")))
follow()
letters = spark.table("dead_letters").withColumn("value", F.col("value").cast("string"))
display(letters.orderBy("index").select("index", "schema_version", "path", "error", "value").limit(3))

# COMMAND ----------

BLOCK = 50
changes = [{"version": each["version"], "index": each["index"]} for each in (first, second)]
rows = spark.table("records").select(
    F.col("_index").alias("index"), F.col("_schema_version").alias("version")
)
dead = letters.select("index", F.lit(None).cast("int").alias("version"))
blocks = (
    rows.unionByName(dead)
    .groupBy((F.floor(F.col("index") / BLOCK) * BLOCK).alias("first_index"), "version")
    .agg(F.count("*").alias("records"))
    .withColumn("size", F.lit(BLOCK))
    .orderBy("first_index")
)
display(versions_figure(blocks.collect(), changes))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Which producer is it?
# MAGIC
# MAGIC A dead letter holds the whole value, so a query can read the fields that are in it.

# COMMAND ----------

faults = letters.select("path", F.get_json_object("value", "$.producer").alias("producer"))
by_producer = (
    spark.table("records")
    .select("producer", F.lit(None).cast("string").alias("path"))
    .unionByName(faults)
    .groupBy("producer")
    .agg(F.count("*").alias("records"), F.count("path").alias("dead_letters"), F.mode("path").alias("path"))
)
producers = by_producer.collect()
display(producers_figure(producers))
suspect = max(producers, key=lambda row: row["dead_letters"])["producer"]

# COMMAND ----------

# MAGIC %md
# MAGIC ## What else did that release do?
# MAGIC
# MAGIC Half of its records match the schema. Are their values right? A schema checks types, not meaning.

# COMMAND ----------

since = letters.agg(F.min("index")).collect()[0][0]
medians = (
    spark.table("records")
    .groupBy("producer", (F.floor(F.col("_index") / 100) * 100).alias("first_index"))
    .agg(F.median("amount").alias("median"))
    .orderBy("first_index")
)
display(amounts_figure(medians.collect(), suspect, since))

# COMMAND ----------

# MAGIC %md
# MAGIC ## The tables before that release
# MAGIC
# MAGIC The first record of the release is found by its index. The newest version of `current` that holds no
# MAGIC record from there on is the state of the shop before it. The revenue of now is a sum of two units.

# COMMAND ----------

begin = spark.table("records").where(F.col("producer") == suspect).agg(F.min("_index")).collect()[0][0]
begin = min(begin, since)
current = identifier(table_path(tables, log, CURRENT))
versions = [row["version"] for row in spark.sql(f"DESCRIBE HISTORY {current}").collect()]
before = next(
    version
    for version in sorted(versions, reverse=True)
    if spark.sql(f"SELECT * FROM {current} VERSION AS OF {version} WHERE _index >= {begin}").isEmpty()
)
query = "SELECT count(*) AS orders, round(sum(amount), 2) AS revenue, max(amount) AS largest FROM"
states = spark.sql(
    f"SELECT 'before {suspect}' AS state, * FROM ({query} {current} VERSION AS OF {before}) "
    f"UNION ALL SELECT 'now', * FROM ({query} {current})"
)
display(states)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The schema is corrected, and the dead letters are replayed
# MAGIC
# MAGIC Guests are allowed from now on: in version 3 `customer` may be null. `commitlog schema replay` reads
# MAGIC the dead letters again with the newest version, and moves those that match to `records`. The amounts
# MAGIC in cents match every version, so no replay corrects them. The app must append these orders again:
# MAGIC `current` then has the newest record of each, and `records` keeps both.

# COMMAND ----------

customer = {**proposal["properties"]["customer"], "type": ["string", "null"]}
with_null = {**with_coupon, "properties": {**with_coupon["properties"], "customer": customer}}
client.put_schema(with_null, key_columns=["order"])
reads = LogReads(tuple(endpoint.split(",")), log, token)
replayed = DeadLetterReplay(spark, reads, lambda table: table_path(tables, log, table)).run()
print(f"{replayed.moved} dead letters are rows of version {replayed.version} now, {replayed.left} are left")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The claim: each record is a typed row or a dead letter, once
# MAGIC
# MAGIC `commitlog verify --tables` checks the same.

# COMMAND ----------

tail = client.tail()["committed_index"] + 1
broken = misplaced(spark.table("entries"), [spark.table("records")], spark.table("dead_letters"), tail)
assert broken.isEmpty(), f"a record is not where it belongs: {broken.first()}"
counts = {name: spark.table(name).count() for name in ("entries", "records", "dead_letters", "current")}
assert counts["records"] + counts["dead_letters"] == counts["entries"]
Operations(client).delete_log(log)
client.close()
print(f"{counts['entries']:,} records: {counts['records']:,} rows, {counts['dead_letters']:,} dead letters")
print(f"{counts['current']:,} orders in their newest state; tables: {table_path(tables, log, RECORDS)}")
