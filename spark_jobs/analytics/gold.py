"""Service levels of a log, from the journals of its nodes: fail-overs, availability, lag.

DataFrame in, DataFrame out. Times are the leaders' clocks: watermarks are recorded at most twice a second, so
a gap may be reported up to that much too long.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

GROUP = "voters array<string>, index long"  # of an event of kind `membership`


def terms(watermarks: DataFrame, epochs: DataFrame) -> DataFrame:
    """Return each term that committed something: when it served, and the gap before it.

    A leader serves from its first watermark event after the commit of its term's opening record to its last
    one. In WATERMARKS, EPOCHS. Out term, leader, serves_from, serves_until, records (committed in it), gap_s
    (since the last term's end, null for the first).
    """
    told = watermarks.join(epochs.select("term", "start_index"), "term").where(
        F.col("committed_index") >= F.col("start_index")
    )
    served = told.groupBy("term").agg(
        F.first("node").alias("leader"),
        F.min("timestamp").alias("serves_from"),
        F.max("timestamp").alias("serves_until"),
        (F.max("committed_index") - F.first("start_index") + 1).alias("records"),
    )
    before = F.lag("serves_until").over(Window.orderBy("term"))
    gap_s = F.greatest(F.lit(0.0), F.col("serves_from").cast("double") - before.cast("double"))
    return served.withColumn("gap_s", F.when(before.isNotNull(), gap_s)).orderBy("term")


def availability(terms: DataFrame) -> DataFrame:
    """Return one row for the time of all terms: total_s, down_s (no leader served), fail_overs,
    longest_gap_s, availability (share of the time, 0 to 1). In: `terms`."""
    span = F.max("serves_until").cast("double") - F.min("serves_from").cast("double")
    row = terms.agg(
        span.alias("total_s"),
        F.coalesce(F.sum("gap_s"), F.lit(0.0)).alias("down_s"),
        F.count("gap_s").alias("fail_overs"),
        F.coalesce(F.max("gap_s"), F.lit(0.0)).alias("longest_gap_s"),
    )
    share = F.when(F.col("total_s") > 0, 1 - F.col("down_s") / F.col("total_s")).otherwise(F.lit(1.0))
    return row.withColumn("availability", share)


def lag(watermarks: DataFrame) -> DataFrame:
    """Return the number of records that each peer lacked, at each watermark event of its leader; null while
    the leader has not heard from it in its term.

    In WATERMARKS. Out term, node, peer, seq, timestamp, lag.
    """
    behind = F.when(F.col("watermark") >= 0, F.col("end_index") - F.col("watermark"))
    return watermarks.select("term", "node", "peer", "seq", "timestamp", behind.alias("lag"))


def lag_by_peer(watermarks: DataFrame) -> DataFrame:
    """Return the lag by peer, over all terms that it followed in.

    In WATERMARKS. Out peer, `news` (number of events), median, p95, most: records that the peer lacked.
    """
    followed = lag(watermarks).where(F.col("peer") != F.col("node"))
    levels = followed.groupBy("peer").agg(
        F.count("*").alias("news"),
        F.percentile("lag", 0.5).alias("median"),
        F.percentile("lag", 0.95).alias("p95"),
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
    told = own.join(_groups(own, events), ["node", "seq"])
    so_far = Window.partitionBy("term", "node", "peer", "since").orderBy("seq")
    counted = told.withColumn("acknowledged", F.max("watermark").over(so_far)).where(
        "(voters IS NULL OR array_contains(voters, peer)) AND committed_index >= since"
    )
    news = counted.groupBy("term", "node", "seq").agg(
        F.first("committed_index").alias("committed_index"),
        F.sort_array(F.collect_list("acknowledged"), asc=False).alias("marks"),
    )
    majority = F.element_at("marks", (F.floor(F.size("marks") / 2) + 1).cast("int"))
    rows = news.select("term", "node", "seq", "committed_index", majority.alias("majority_index"))
    return rows.where(F.col("committed_index") > F.col("majority_index"))


def _groups(watermarks: DataFrame, events: DataFrame) -> DataFrame:
    """Return the group of each leader at each of its events. Out node, seq, voters (null: not recorded),
    since."""
    told = events.where("kind = 'membership'")
    told = told.select("node", "seq", F.from_json("data", GROUP).alias("group"))
    moments = watermarks.select("node", "seq").distinct().unionByName(told, allowMissingColumns=True)
    last = F.last("group", ignorenulls=True).over(Window.partitionBy("node").orderBy("seq"))
    groups = moments.withColumn("last", last).where("group IS NULL")
    return groups.select("node", "seq", "last.voters", F.coalesce("last.index", F.lit(-1)).alias("since"))


def backward_steps(watermarks: DataFrame) -> DataFrame:
    """Return events in which the committed index of a term decreased: there must be none (R-07).

    In WATERMARKS. Out term, node, seq, committed_index, before.
    """
    news = watermarks.groupBy("term", "node", "seq").agg(F.first("committed_index").alias("committed_index"))
    order = Window.partitionBy("term", "node").orderBy("seq")
    steps = news.withColumn("before", F.lag("committed_index").over(order))
    return steps.where(F.col("committed_index") < F.col("before"))
