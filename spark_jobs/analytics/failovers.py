"""Fail-overs of a log in controller mode, from its tables. DataFrame in, DataFrame out.

Times are those of the nodes' own clocks: differences between these clocks appear in the results.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

ELECTION = (
    "controller_index long, time_ms long, master string, master_epoch long, set_epoch long, reason string, "
    "unclean boolean"
)


def elections(events: DataFrame) -> DataFrame:
    """Return each decision of the controllers about the log's master once, in order.

    Every node that keeps the log records it, and again after a restart: controller_index identifies
    duplicates. A row without a master means that no member of the set was alive. In EVENTS. Out
    controller_index, time (the controller's clock), master, master_epoch, set_epoch, reason, unclean.
    """
    decoded = events.where("kind = 'election'").select(F.from_json("data", ELECTION).alias("decoded"))
    each = decoded.select("decoded.*").dropDuplicates(["controller_index"])
    time = F.timestamp_millis("time_ms").alias("time")
    columns = ("master", "master_epoch", "set_epoch", "reason", "unclean")
    return each.select("controller_index", time, *columns).orderBy("controller_index")


def reigns(elections: DataFrame, events: DataFrame) -> DataFrame:
    """Return the time of each master: until the next decision, or, for the last one, until the last event.

    In: `elections`, EVENTS. Out master, master_epoch, reason, unclean, from, until.
    """
    last = events.agg(F.max("timestamp")).collect()[0][0]
    following = F.lead("time").over(Window.orderBy("controller_index"))
    until = F.greatest("time", F.coalesce(following, F.lit(last)))
    columns = ("master", "master_epoch", "reason", "unclean", F.col("time").alias("from"))
    return elections.select(*columns, until.alias("until")).where("master IS NOT NULL").orderBy("from")


def memberships(sync_state_sets: DataFrame, events: DataFrame) -> DataFrame:
    """Return the time of each node in the set, one row per node and set.

    In SYNC_STATE_SETS, EVENTS. Out node, epoch, set_epoch, from, until.
    """
    last = events.agg(F.max("timestamp")).collect()[0][0]
    following = F.lead("timestamp").over(Window.orderBy("epoch", "set_epoch"))
    until = F.greatest("timestamp", F.coalesce(following, F.lit(last)))
    each = sync_state_sets.withColumn("until", until)
    columns = ("epoch", "set_epoch", F.col("timestamp").alias("from"), "until")
    return each.select(F.explode("members").alias("node"), *columns).orderBy("set_epoch", "node")


def confirmed(watermarks: DataFrame, entries: DataFrame, sync_state_sets: DataFrame) -> DataFrame:
    """Return the confirm offset as recorded: by masters with their watermarks, and with each set.

    A watermark names the last confirmed record; the result is the offset of the batch that holds it, which is
    below the confirm offset that a set has. So rows of the two kinds are not to be compared. In WATERMARKS,
    ENTRIES, SYNC_STATE_SETS. Out timestamp, epoch, confirm_offset (bytes), of_set (the kind), in order.
    """
    updates = watermarks.groupBy("term", "node", "seq").agg(
        F.first("timestamp").alias("timestamp"), F.first("committed_index").alias("index")
    )
    by_update = updates.join(entries.select("index", "offset"), "index").select(
        "timestamp",
        F.col("term").alias("epoch"),
        F.col("offset").alias("confirm_offset"),
        F.lit(False).alias("of_set"),
    )
    by_sets = sync_state_sets.select("timestamp", "epoch", "confirm_offset", F.lit(True).alias("of_set"))
    return by_update.unionByName(by_sets).orderBy("timestamp", "epoch")


def pauses(entries: DataFrame) -> DataFrame:
    """Return the time between consecutive records: the wait of producers that append all the time.

    A record that is sent again keeps the time of its first sending, so a time may be before that of the
    record before it: the pause counts from the latest time so far. In ENTRIES. Out index, term, timestamp,
    pause_s.
    """
    order = Window.orderBy("index")
    so_far = F.max("timestamp").over(order.rowsBetween(Window.unboundedPreceding, -1))
    pause_s = F.greatest(F.lit(0.0), F.col("timestamp").cast("double") - so_far.cast("double"))
    rows = entries.select("index", "term", "timestamp", pause_s.alias("pause_s"))
    return rows.where("pause_s IS NOT NULL").orderBy("index")


def wrong_sets(sync_state_sets: DataFrame) -> DataFrame:
    """Return sets that violate an invariant: without their master, with a set epoch that does not rise,
    with a confirm offset below that of the set before. In SYNC_STATE_SETS. Out its columns, and why."""
    order = Window.orderBy("epoch", "set_epoch")
    why = (
        F.when(~F.array_contains("members", F.col("master")), "the master is not in it")
        .when(F.col("set_epoch") <= F.lag("set_epoch").over(order), "its set epoch does not rise")
        .when(F.col("confirm_offset") < F.lag("confirm_offset").over(order), "the confirm offset falls")
    )
    return sync_state_sets.withColumn("why", why).where("why IS NOT NULL")


def wrong_epochs(elections: DataFrame, epochs: DataFrame) -> DataFrame:
    """Return epochs of the log that no election gave to the node that opened them. In: `elections`,
    EPOCHS. Out epoch, leader."""
    given = elections.select(F.col("master_epoch").alias("epoch"), F.col("master").alias("leader"))
    return epochs.select("epoch", "leader").join(given, ["epoch", "leader"], "left_anti")
