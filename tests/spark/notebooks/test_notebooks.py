"""The whole road with the real service: flights over REST, a killed leader, every table, and the notebook."""

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from app.client import CommitlogClient, NotFound, Record, Unavailable
from app.client.tables import MaterializedTable, Tables
from app.demo.flights import FLIGHTS_SCHEMA, read_flights
from app.tables.delta_log import DeltaLog
from app.tables.names import CURSOR, LOG_ID_PROPERTY
from spark_jobs.materialize.config import MaterializeConfig
from spark_jobs.materialize.progress import Progress
from spark_jobs.notebook import run_notebook
from spark_jobs.run import materialize
from spark_jobs.tables.local.commits import LocalTable
from spark_jobs.tables.snapshot import read_plain
from spark_jobs.tables.table import CURRENT, DEAD_LETTERS, ENTRIES, RECORDS, TABLES, identifier
from spark_jobs.tables.travel import at
from spark_jobs.verify import Verified, verify_tables
from tests.spark.typed.law import rows_of
from tests.spark.user_restore import restore
from tests.support.cluster import Cluster, eventually, running

FLIGHTS = 3_000
NOTEBOOKS = Path(__file__).parents[3] / "notebooks"
PLAIN = "plain"  # a log of records that are not flights
STRICT = "strict"  # a log that refuses records that do not match its schema
PLAIN_RECORDS = [
    Record('{"hour": 3, "carrier": 7, "dep_delay": null}', key="json"),
    Record(bytes(range(128, 200))),
    Record("text", timestamp=1_300_000_000_000),
]
PLAIN_CLAIMS = {
    "03": "There are no elections by controllers to check",
    "05": "There are no flights to count",
    "06": "1,400 records: 1,400 rows, 0 dead letters",  # of a log of its own
}
CLAIMS = {  # the output of each last cell on success; 01 is run by test_connect.py, 03 has its own cluster
    "02": "a majority had every committed record, and the committed index never decreased",
    "04": f"{FLIGHTS:,} rows, 0 doubles",  # and log and tables are equal
    "05": f"all {FLIGHTS:,}, none dropped",
}


@dataclass
class Road:
    """A cluster that lost its leader half-way, and the tables of its log."""

    cluster: Cluster
    tables: Path
    endpoint: str
    last_index: int
    killed: str


@pytest.fixture(scope="module")
def road(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Road]:
    folder = tmp_path_factory.mktemp("road")
    sections = {"tables": {"path": folder / "tables"}}
    with running(folder, logs=({"name": PLAIN}, {"name": STRICT}), sections=sections) as cluster:
        urls = [cluster.url(node) for node in cluster.ids]
        config = MaterializeConfig(
            endpoint=",".join(urls), tables=folder / "tables", trigger="500 milliseconds"
        )
        stop = threading.Event()
        ended: list[Progress] = []
        job = threading.Thread(target=lambda: ended.append(materialize(config, spark=spark, stop=stop)))
        job.start()
        try:
            killed, last_index = send_flights(cluster, urls)
            progress = folder / "tables" / "progress.json"

            def caught_up() -> bool:
                if not progress.exists():
                    return False
                log = json.loads(progress.read_text())["logs"]["default"]
                typed_index = (log["typed"] or {}).get("typed_index", -1)
                reached = min(log["materialized_index"], typed_index)
                return bool(reached >= last_index and log["epochs_rows"] >= 2)

            eventually(caught_up, what="the tables hold every flight", timeout_s=300)
        finally:
            stop.set()
            job.join()
        assert ended
        with CommitlogClient(urls, log=PLAIN) as client:
            client.append(PLAIN_RECORDS)
        with CommitlogClient(urls, log=STRICT) as client:
            client.append(PLAIN_RECORDS)  # before it has a schema
            client.put_schema("id BIGINT NOT NULL", on_invalid="reject")
            client.append(['{"id": 17}'])
        logs = ("default", PLAIN, STRICT)
        materialize(
            MaterializeConfig(endpoint=config.endpoint, tables=config.tables, logs=logs, available_now=True),
            spark=spark,
        )
        yield Road(cluster, config.tables, config.endpoint, last_index, killed)


def send_flights(cluster: Cluster, urls: list[str]) -> tuple[str, int]:
    """All flights in appends of 100, with pauses in which the tables catch up, so that they have a history.

    The leader is killed half-way and started again later.
    """
    flights = list(read_flights(FLIGHTS))
    killed, last_index = "", -1
    with CommitlogClient(urls) as client:
        client.put_schema(FLIGHTS_SCHEMA)
        for start in range(0, FLIGHTS, 100):
            if start == FLIGHTS // 2:
                killed = cluster.leader()
                cluster.kill(killed)
            last_index = client.append(flights[start : start + 100]).last_index
            if start % 500 == 400:
                eventually(partial(in_table, client, last_index), what="it is in the table", timeout_s=300)
    cluster.start(killed)
    cluster.wait_ready()
    cluster.wait_even()
    return killed, last_index


def in_table(client: CommitlogClient, index: int) -> MaterializedTable | None:
    """The table once it holds the index; None before."""
    try:
        return Tables(client).wait(index, timeout_ms=20_000)
    except (NotFound, Unavailable):
        return None


def rows_in(road: Road, name: str, *order: str) -> list[dict[str, Any]]:
    """Return the rows of a table, read without Spark."""
    return sorted(rows_of(road.tables / "default" / name), key=lambda row: [row[each] for each in order])


def test_the_table_holds_every_flight_once_in_the_order_of_the_log(road: Road) -> None:
    held = rows_in(road, "entries", "index")
    indexes = [row["index"] for row in held]
    assert (len(set(indexes)), indexes[-1]) == (FLIGHTS, road.last_index)
    sent = [(record.key, bytes(record.value)) for record in read_flights(FLIGHTS)]
    assert [(row["key"].decode(), row["value"]) for row in held] == sent


@pytest.mark.rule("D-22")
def test_the_tables_record_the_fail_over(road: Road) -> None:
    epochs = rows_in(road, "epochs", "epoch")
    assert road.killed in [row["leader"] for row in epochs[:-1]]
    for row, following in pairwise(epochs):
        assert row["end_index"] == following["start_index"] - 1
        assert row["end_offset"] == following["start_offset"]
    assert epochs[-1]["end_index"] is None
    due = [{**row, "node": node} for node in road.cluster.ids for row in epochs]
    assert rows_in(road, "epoch_files", "node", "epoch") == due
    watermarks = rows_in(road, "watermarks")
    assert {epochs[0]["term"], epochs[-1]["term"]} <= {row["term"] for row in watermarks}
    last = max(row["watermark"] for row in watermarks if row["term"] == epochs[-1]["term"])
    assert last >= road.last_index
    events = rows_in(road, "events", "node", "seq")
    for node in road.cluster.ids:
        reported = road.cluster.get(node, "/v1/logs/default/events", params={"limit": 10_000}).json()[
            "events"
        ]
        own = [row for row in events if row["node"] == node]
        assert [row["seq"] for row in own] == list(range(len(own)))
        assert [(row["kind"], json.loads(row["data"])) for row in own] == [
            (event["kind"], event["data"]) for event in reported[: len(own)]
        ]


def test_nothing_is_trimmed_that_the_table_lacks(road: Road) -> None:
    cursor = road.cluster.get("n1", f"/v1/logs/default/cursors/{CURSOR}").json()
    assert cursor["fence"] is True
    assert cursor["index"] == road.last_index + 1
    refused = road.cluster.call(
        "POST", "n1", "/v1/logs/default:trim", json={"until_index": road.last_index + 2}
    )
    assert (refused.status_code, refused.json()["code"]) == (409, "not-materialized")


def test_the_service_knows_the_tables_and_one_call_opens_them_at_a_point(
    spark: SparkSession, road: Road
) -> None:
    with CommitlogClient(road.endpoint.split(",")) as client:
        known = {each.name: each for each in Tables(client).all()}
        typed = {each.name for each in (RECORDS, DEAD_LETTERS, CURRENT)}
        assert set(known) == {each.name for each in TABLES} | typed
        assert Tables(client).wait(road.last_index) == known["entries"]
        assert (known["entries"].lag_records, known["entries"].lag_ms) == (0, 0)
        assert known["epochs"].lag_records == 0
        assert all(each.materialized_index is not None for each in known.values())
        *_, led = (epoch for epoch in client.epochs()[:-1] if epoch["leader"] == road.killed)
    cut = at(spark, road.endpoint, epoch=led["epoch"])
    assert cut.index == led["end_index"]
    assert set(cut) == set(known)
    due = [row["index"] for row in rows_in(road, "entries", "index") if row["index"] <= cut.index]
    assert len(due) >= FLIGHTS // 2
    assert [row["index"] for row in cut["entries"].select("index").orderBy("index").collect()] == due
    half = at(spark, road.endpoint, index=road.last_index - 50)
    assert half["entries"].agg({"index": "max"}).collect()[0][0] == road.last_index - 50
    assert set(half) == set(known)
    assert all(version <= known[name].version for name, version in half.versions.items())
    newest = at(spark, road.endpoint, index=road.last_index)
    assert newest.versions == {name: table.version for name, table in known.items()}
    assert newest["epochs"].count() == len(rows_in(road, "epochs"))
    with CommitlogClient(road.endpoint.split(","), log=PLAIN) as client:
        last = client.read(last=1).records[0]["index"]
    plain = at(spark, road.endpoint, PLAIN, index=last)
    assert set(plain) == {each.name for each in TABLES}
    assert plain["entries"].count() == len(PLAIN_RECORDS)


def test_the_first_difference_of_log_and_table_is_named(spark: SparkSession, road: Road) -> None:
    path = road.tables / PLAIN / ENTRIES.name
    version = DeltaLog(str(path)).versions()[-1]
    held = read_plain(str(path), ENTRIES.schema, ENTRIES.schema.names)
    assert held is not None
    held = held.sort_by("index")
    first, second, _ = held["index"].to_pylist()

    def verified() -> Verified:
        return verify_tables(spark, road.endpoint, PLAIN)

    def verified_with(rows: pa.Table, *, statistics: Sequence[str] = ENTRIES.statistics) -> Verified:
        local = LocalTable(str(path), lambda path: None, keeps_files=True)
        assert local.replace(lambda: rows, statistics=statistics, claim=None, note={})
        return verified()

    spark.sql(f"ALTER TABLE {identifier(str(path))} SET TBLPROPERTIES ('{LOG_ID_PROPERTY}' = '{'0' * 16}')")
    assert verified().difference == "the table holds the records of another log"
    restore(path, version)
    values, place = held["value"].to_pylist(), held.schema.get_field_index("value")
    changed_values = pa.array([values[0], b"\0", b"\0"], held.schema.field(place).type)
    rows = held.set_column(place, held.schema.field(place), changed_values)
    changed = verified_with(rows, statistics=())  # as programs write that keep none
    assert (changed.equal, changed.first_difference) == (False, second)
    assert f"first at index {second}: the record's content differs" in str(changed)
    lacking = verified_with(rows.slice(1))
    assert lacking.first_difference == first
    assert lacking.difference == "the log has 1 such record, the table 0"
    restore(path, version)
    same = verified()
    assert same.equal, str(same)


@pytest.mark.parametrize("number", CLAIMS)
def test_each_notebook_runs_top_to_bottom(
    spark: SparkSession, road: Road, number: str, tmp_path: Path
) -> None:
    (notebook,) = NOTEBOOKS.glob(f"{number}_*.py")
    parameters = {"endpoint": road.endpoint, "tables": str(road.tables)}
    pictures = run_notebook(notebook, parameters, tmp_path / "page.html", spark)
    assert len(pictures) >= 2
    assert CLAIMS[number] in (tmp_path / "page.html").read_text()


def test_every_notebook_passes_on_a_log_of_other_records(
    spark: SparkSession, road: Road, tmp_path: Path
) -> None:
    """The job of databricks.yml runs all of them, on any log.

    01 runs on the log STRICT. 02 reads no record. 04 opens the tables at a point and verifies them, as other
    tests do with this log.
    """
    assert {path.name[:2] for path in NOTEBOOKS.glob("0*.py")} == {*PLAIN_CLAIMS, "01", "02", "04"}
    for number, claim in PLAIN_CLAIMS.items():
        (notebook,) = NOTEBOOKS.glob(f"{number}_*.py")
        parameters = {"endpoint": road.endpoint, "tables": str(road.tables), "log": PLAIN}
        page = tmp_path / f"{notebook.stem}.html"
        run_notebook(notebook, parameters, page, spark)
        assert claim in page.read_text(), notebook.name


def test_the_first_notebook_reads_the_newest_record_of_a_log_that_refuses_its_own(
    spark: SparkSession, road: Road, tmp_path: Path
) -> None:
    (notebook,) = NOTEBOOKS.glob("01_*.py")
    parameters = {"endpoint": road.endpoint, "tables": str(road.tables), "log": STRICT}
    run_notebook(notebook, parameters, tmp_path / "page.html", spark)
    page = (tmp_path / "page.html").read_text()
    assert "Nothing was appended" in page
    assert f"{len(PLAIN_RECORDS) + 1} rows, indexes" in page
