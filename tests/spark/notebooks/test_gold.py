"""Service levels from rows of a test's own."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.analytics import gold
from spark_jobs.tables import schemas

AT = datetime(2024, 1, 2, tzinfo=UTC)


def watermark_rows(
    term: int, node: str, seq: int, second: float, committed: int, **peers: int
) -> list[tuple[object, ...]]:
    moment = AT + timedelta(seconds=second)
    end = max(peers.values())
    return [
        ("default", term, peer, node, seq, moment, "leader", mark, 0, end, committed)
        for peer, mark in peers.items()
    ]


@pytest.fixture(scope="module")
def watermarks(spark: SparkSession) -> DataFrame:
    """n1 leads for 8 s; n2 takes over, and has its own record committed 2.5 s after n1's last watermark."""
    rows = [
        *watermark_rows(1, "n1", 1, 0, 0, n1=0, n2=0, n3=-1),
        *watermark_rows(1, "n1", 2, 4, 50, n1=60, n2=50, n3=40),
        *watermark_rows(1, "n1", 3, 8, 99, n1=99, n2=99, n3=40),
        *watermark_rows(2, "n2", 1, 10, 99, n1=-1, n2=100, n3=40),
        *watermark_rows(2, "n2", 2, 10.5, 100, n1=-1, n2=100, n3=100),
        *watermark_rows(2, "n2", 3, 20, 130, n1=130, n2=130, n3=130),
    ]
    return spark.createDataFrame(rows, schemas.WATERMARKS)


def epochs(spark: SparkSession) -> DataFrame:
    opened = [
        ("default", 1, 1, "n1", 0, 0, 99, 9_900, AT),
        ("default", 2, 2, "n2", 100, 9_900, None, None, AT),
    ]
    return spark.createDataFrame(opened, schemas.EPOCHS)


def test_a_leader_is_known_while_it_reports_commits_of_its_term(
    spark: SparkSession, watermarks: DataFrame
) -> None:
    found = gold.reports_by_term(watermarks, epochs(spark)).orderBy("term").collect()
    times = [(row["term"], row["first"].timestamp(), row["last"].timestamp()) for row in found]
    begin = AT.timestamp()
    assert times == [(1, begin, begin + 8), (2, begin + 10.5, begin + 20)]  # its first report has no commit


def test_lag_counts_the_last_known_watermark_of_a_silent_peer(
    spark: SparkSession, watermarks: DataFrame
) -> None:
    levels = {
        row["peer"]: (row["events"], row["silent"], row["median"], row["most"])
        for row in gold.lag_by_peer(watermarks).collect()
    }
    assert levels == {"n1": (3, 2, 1.0, 1), "n2": (3, 0, 0.0, 10), "n3": (6, 1, 20.0, 60)}
    dead = spark.createDataFrame(
        watermark_rows(3, "n2", 9, 30, 150, n1=-1, n2=150, n4=-1), schemas.WATERMARKS
    )
    reported = gold.lag(watermarks.union(dead)).where("term = 3").collect()
    assert {row["peer"]: (row["heard"], row["lag"]) for row in reported} == {
        "n1": (False, 20),
        "n2": (True, 0),
        "n4": (False, 151),
    }


def membership(
    spark: SparkSession, *reported: tuple[str, int, int, str], learners: tuple[str, ...] = ()
) -> DataFrame:
    """Events of kind `membership`: (node, seq, index of the record, voters as one word each)."""
    rows = [
        (
            "default",
            node,
            seq,
            AT,
            "membership",
            1,
            json.dumps({"voters": voters.split(), "learners": list(learners), "index": index}),
        )
        for node, seq, index, voters in reported
    ]
    return spark.createDataFrame(rows, schemas.EVENTS)


def uncovered(watermarks: DataFrame, events: DataFrame) -> list[tuple[int, int, int]]:
    """(seq, committed_index, majority_index) of what is found."""
    found = gold.uncovered_commits(watermarks, epochs(watermarks.sparkSession), events).orderBy("seq")
    return [(row["seq"], row["committed_index"], row["majority_index"]) for row in found.collect()]


def test_reports_that_no_leader_may_make_are_found(spark: SparkSession, watermarks: DataFrame) -> None:
    nothing = membership(spark)
    assert uncovered(watermarks, nothing) == []
    assert gold.backward_steps(watermarks).isEmpty()
    wrong = [
        *watermark_rows(2, "n2", 4, 21, 140, n1=130, n2=140, n3=130),
        *watermark_rows(2, "n2", 5, 22, 135, n1=135, n2=140, n3=130),
    ]
    reported = watermarks.union(spark.createDataFrame(wrong, schemas.WATERMARKS))
    assert uncovered(reported, nothing) == [(4, 140, 130)]
    backward = gold.backward_steps(reported).collect()
    assert [(row["seq"], row["committed_index"], row["before"]) for row in backward] == [(5, 135, 140)]


@pytest.mark.rule("D-24", "R-10")
def test_only_voters_of_the_leaders_group_cover_a_commit(spark: SparkSession) -> None:
    """Records that learners hold are not counted as covered, and those they lack are not missing."""
    rows = [
        *watermark_rows(2, "n2", 11, 0, 140, n1=130, n2=140, n3=140, n4=-1, n5=-1, n6=-1),
        *watermark_rows(2, "n2", 12, 1, 150, n1=130, n2=150, n3=140, n4=150, n5=150, n6=150),
    ]
    reported = spark.createDataFrame(rows, schemas.WATERMARKS)
    learners = ("n4", "n5", "n6")
    assert uncovered(reported, membership(spark, ("n2", 10, 120, "n1 n2 n3"), learners=learners)) == [
        (12, 150, 140)
    ]
    elsewhere = membership(spark, ("n1", 10, 120, "n1 n2 n3"), ("n2", 13, 151, "n1 n2 n3"), learners=learners)
    assert uncovered(reported, elsewhere) == [
        (11, 140, -1)
    ]  # no earlier configuration: all of them are voters


@pytest.mark.rule("D-24", "R-10")
def test_a_change_of_members_counts_from_its_record_on(spark: SparkSession) -> None:
    """n3 is removed with the record at 141, n1 is still at 130: what it had covered remains covered."""
    rows = [
        *watermark_rows(2, "n2", 11, 0, 140, n1=130, n2=140, n3=140),
        *watermark_rows(2, "n2", 13, 1, 140, n1=130, n2=145, n4=145),
        *watermark_rows(2, "n2", 14, 2, 145, n1=145, n2=145, n4=145),
        *watermark_rows(
            2, "n2", 15, 3, 145, n1=-1, n2=146, n4=146
        ),  # n1 was wiped: it had acknowledged all the same
        *watermark_rows(2, "n2", 16, 4, 146, n1=-1, n2=146, n4=146),
    ]
    reported = spark.createDataFrame(rows, schemas.WATERMARKS)
    events = membership(spark, ("n2", 10, -1, "n1 n2 n3"), ("n2", 12, 141, "n1 n2"), learners=("n4",))
    assert uncovered(reported, events) == [(16, 146, 145)]
