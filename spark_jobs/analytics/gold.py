"""Service levels of a log, from its records and the journals of its nodes: records by term, lag, commits.

DataFrame in, DataFrame out; terms.py computes the pauses between terms. Watermarks are recorded at most twice
a second.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

GROUP = "voters array<string>, index long"  # of an event of kind `membership`


def records_by_term(entries: DataFrame) -> DataFrame:
    """Return the number of records of each term, and the times of the first and the last one.

    In ENTRIES. Out term, records, first, last.
    """
    return entries.groupBy("term").agg(
        F.count("*").alias("records"), F.min("timestamp").alias("first"), F.max("timestamp").alias("last")
    )


def reports_by_term(watermarks: DataFrame, epochs: DataFrame) -> DataFrame:
    """Return the times of the first and the last report of each leader that had a record of its term
    committed: between them it could commit.

    In WATERMARKS, EPOCHS. Out term, first, last.
    """
    leading = watermarks.join(epochs.select("term", "start_index"), "term").where(
        "committed_index >= start_index"
    )
    return leading.groupBy("term").agg(F.min("timestamp").alias("first"), F.max("timestamp").alias("last"))


def lag(watermarks: DataFrame) -> DataFrame:
    """Return the number of records that each peer lacked, at each watermark event of its leader.

    While the leader has not heard from a peer in its term, the peer's last watermark of an earlier term
    counts: the lag of a node that is down grows. Null until a peer is heard of for the first time; a peer
    that is never heard of lacks everything. In WATERMARKS. Out term, node, peer, seq, timestamp, heard (in
    this term), lag.
    """
    heard = F.col("watermark") >= 0
    peer = Window.partitionBy("peer")
    so_far = peer.orderBy("term", "seq").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    known = F.last(F.when(heard, F.col("watermark")), ignorenulls=True).over(so_far)
    never = F.when(F.max("watermark").over(peer) < 0, F.lit(-1))
    behind = F.greatest(F.lit(0), F.col("end_index") - F.coalesce(known, never))
    lag = F.when(F.coalesce(known, never).isNotNull(), behind)
    return watermarks.select(
        "term", "node", "peer", "seq", "timestamp", heard.alias("heard"), lag.alias("lag")
    )


def lag_by_peer(watermarks: DataFrame) -> DataFrame:
    """Return the lag by peer, over all terms that it did not lead.

    In WATERMARKS. Out peer, events, silent (events of a term in which the leader had not heard from it yet),
    median, p95, most: records that the peer lacked.
    """
    followed = lag(watermarks).where(F.col("peer") != F.col("node"))
    levels = followed.groupBy("peer").agg(
        F.count("*").alias("events"),
        F.count_if(~F.col("heard")).alias("silent"),
        F.percentile("lag", 0.5).alias("median"),
        F.round(F.percentile("lag", 0.95), 1).alias("p95"),
        F.max("lag").alias("most"),
    )
    return levels.orderBy("peer")


def uncovered_commits(watermarks: DataFrame, epochs: DataFrame, events: DataFrame) -> DataFrame:
    """Return events that report more records of their own term as committed than a majority of the voters has
    acknowledged in it: there must be none (D-24, R-05). For logs in Raft mode.

    The voters are those in the leader's own journal: a node records its group when it starts, and at each
    change (R-10), which counts from the index of its record on; records committed before that were counted in
    the previous group, and are not judged again. Without a recorded group, all peers are voters. In
    WATERMARKS, EPOCHS, EVENTS. Out term, node, seq, committed_index, majority_index.
    """
    own = watermarks.join(epochs.select("term", "start_index"), "term").where(
        "committed_index >= start_index"
    )
    grouped = own.join(_groups(own, events), ["node", "seq"])
    so_far = Window.partitionBy("term", "node", "peer", "since").orderBy("seq")
    counted = grouped.withColumn("acknowledged", F.max("watermark").over(so_far)).where(
        "(voters IS NULL OR array_contains(voters, peer)) AND committed_index >= since"
    )
    updates = counted.groupBy("term", "node", "seq").agg(
        F.first("committed_index").alias("committed_index"),
        F.sort_array(F.collect_list("acknowledged"), asc=False).alias("marks"),
    )
    majority = F.element_at("marks", (F.floor(F.size("marks") / 2) + 1).cast("int"))
    rows = updates.select("term", "node", "seq", "committed_index", majority.alias("majority_index"))
    return rows.where(F.col("committed_index") > F.col("majority_index"))


def _groups(watermarks: DataFrame, events: DataFrame) -> DataFrame:
    """Return the group of each leader at each of its events. Out node, seq, voters (null: not recorded),
    since."""
    memberships = events.where("kind = 'membership'")
    memberships = memberships.select("node", "seq", F.from_json("data", GROUP).alias("group"))
    moments = watermarks.select("node", "seq").distinct().unionByName(memberships, allowMissingColumns=True)
    last = F.last("group", ignorenulls=True).over(Window.partitionBy("node").orderBy("seq"))
    groups = moments.withColumn("last", last).where("group IS NULL")
    return groups.select("node", "seq", "last.voters", F.coalesce("last.index", F.lit(-1)).alias("since"))


def backward_steps(watermarks: DataFrame) -> DataFrame:
    """Return events in which the committed index of a term decreased: there must be none (R-07).

    In WATERMARKS. Out term, node, seq, committed_index, before.
    """
    updates = watermarks.groupBy("term", "node", "seq").agg(
        F.first("committed_index").alias("committed_index")
    )
    order = Window.partitionBy("term", "node").orderBy("seq")
    steps = updates.withColumn("before", F.lag("committed_index").over(order))
    return steps.where(F.col("committed_index") < F.col("before"))
