"""The service's reports on a log's Delta tables: real nodes, tables written by hand."""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner

from app.cli.main import cli
from app.client import CommitlogClient, NotFound, Unavailable
from app.client.tables import Tables
from app.tables.digests import BlockSum, block_sums
from app.tables.names import BEGIN_PROPERTY, LOG_ID_PROPERTY, application_of
from spark_jobs.errors import Unreachable
from spark_jobs.source.log_reads import LogReads
from tests.support.cluster import Cluster, eventually, running
from tests.support.delta_files import DeltaFiles

FROM_MS = 4_000_000_000_000  # after the control record that opens the log
NAMES = ("pair", "short", "again", "follow", "typed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Cluster]:
    """The logs of NAMES are kept by two nodes of three."""
    logs = tuple({"name": name, "replicas": ["n1", "n2"]} for name in NAMES)
    with running(folder, 3, logs=logs, sections={"tables": {"path": folder / "delta"}}) as started:
        yield started


@pytest.fixture(scope="module")
def entries(cluster: Cluster, folder: Path) -> DeltaFiles:
    """Twelve records in the log, one each ten seconds; all are in the table: six, then the rest."""
    times = [FROM_MS + 10_000 * number for number in range(12)]
    records = [{"value": f"v{number}", "timestamp": time} for number, time in enumerate(times)]
    first = cluster.call("POST", "n1", "/v1/logs/default/records", json={"records": records}).json()
    table = DeltaFiles(folder / "delta" / "default" / "entries")
    table.create(timestamp_ms=1_000)
    middle = first["first_index"] + 6
    table.bring(first["first_index"], middle, timestamp_ms=2_000)
    table.bring(middle, first["next_index"], timestamp_ms=3_000)
    events = DeltaFiles(folder / "delta" / "default" / "events")
    events.commit(timestamp_ms=1_500)
    events.commit(timestamp_ms=3_500)  # the commit that it describes follows the rows
    cluster.wait_even()
    return table


@pytest.fixture
def again(folder: Path) -> Iterator[DeltaFiles]:
    """`entries` of the log `again`, empty before and removed after each test."""
    path = folder / "delta" / "again" / "entries"
    yield DeltaFiles(path)
    shutil.rmtree(path)


def last_index(cluster: Cluster, log: str = "default") -> int:
    return int(cluster.status(cluster.leader(log), log)["committed_index"])


def get(cluster: Cluster, path: str, node: str = "n1", log: str = "default") -> httpx.Response:
    return cluster.get(node, f"/v1/logs/{log}/{path}")


def test_tables_are_listed_with_their_lag(cluster: Cluster, entries: DeltaFiles) -> None:
    end = last_index(cluster)
    for node in cluster.ids:
        found = get(cluster, "tables", node).json()["tables"]
        assert found == [
            {
                "name": "entries",
                "path": str(entries.folder),
                "version": 2,
                "materialized_index": end,
                "lag_records": 0,
                "lag_ms": 0,
                "committed_ms": 3_000,
                "catalog_name": None,
            },
            {
                "name": "events",
                "path": str(entries.folder.parent / "events"),
                "version": 1,
                "materialized_index": None,
                "lag_records": None,
                "lag_ms": None,
                "committed_ms": 3_500,
                "catalog_name": None,
            },
        ]
    assert get(cluster, "tables/entries").json() == found[0]
    assert get(cluster, "tables", "n3", log="pair").json() == {"tables": []}


def test_a_failed_job_is_reported_with_the_tables(
    cluster: Cluster, entries: DeltaFiles, folder: Path
) -> None:
    assert "job" not in get(cluster, "tables").json()
    job = {"state": "failed", "updated_ms": 9, "error": "the disk is full", "failed_ms": 7}
    report = folder / "delta" / "progress.json"
    report.write_text(json.dumps({**job, "error": None, "logs": {"default": {**job, "entries_rows": 3}}}))
    try:
        for node in cluster.ids:
            assert get(cluster, "tables", node).json()["job"] == job
        with CommitlogClient(cluster.url("n1")) as client:
            found = Tables(client).listing()
            assert found.tables == Tables(client).all()
            assert found.job is not None
            assert asdict(found.job) == job
    finally:
        report.unlink()


def test_missing_tables_and_points_are_refused(cluster: Cluster, entries: DeltaFiles) -> None:
    for path, status, code in (
        ("tables/none", 404, "table-not-found"),
        ("tables/no..such", 404, "table-not-found"),
        ("tables/none:wait?index=1", 404, "table-not-found"),
        ("tables/entries:wait", 422, "invalid-request"),
        ("tables/entries:wait?index=1&timeout_ms=60001", 422, "invalid-request"),
        ("tables:at", 422, "invalid-request"),
        ("tables:at?index=1&epoch=1", 422, "invalid-request"),
        ("tables:at?index=100000", 404, "no-such-cut"),
        ("tables:at?epoch=100000", 404, "no-such-cut"),
        ("tables:at?timestamp=1000", 404, "no-such-cut"),
        ("tables/entries:wait?index=100000&timeout_ms=10", 504, "not-yet-materialized"),
    ):
        answer = get(cluster, path)
        assert (answer.status_code, answer.json()["code"]) == (status, code), path
    missing = get(cluster, "tables/entries", log="pair").json()
    assert missing["code"] == "table-not-found"
    assert "'entries'; the Spark job (`commitlog up` or `commitlog materialize`)" in missing["detail"]
    late = get(cluster, "tables/entries:wait?index=1&timeout_ms=10", log="pair")
    assert late.json()["code"] == "table-not-found"
    assert get(cluster, "tables:at?index=1", log="pair").json()["code"] == "no-such-cut"
    refused = cluster.call("POST", "n1", "/v1/logs/default/tables:at")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")


def test_a_point_of_the_log_has_versions(cluster: Cluster, entries: DeltaFiles) -> None:
    first = int(get(cluster, "records?from=earliest&limit=1").json()["records"][0]["index"])
    middle = {"index": first + 5, "tables": {"entries": 1, "events": 0}, "exact": True}
    assert get(cluster, f"tables:at?index={first + 5}").json() == middle
    assert get(cluster, f"tables:at?timestamp={FROM_MS + 59_999}").json() == middle
    assert get(cluster, f"tables:at?timestamp={FROM_MS + 50_000}").json() == middle
    later = get(cluster, f"tables:at?index={first + 6}").json()
    assert later == {"index": first + 6, "tables": {"entries": 2, "events": 1}, "exact": False}
    epoch = cluster.get("n1", "/v1/logs/default/epochs").json()["epochs"][-1]["epoch"]
    with CommitlogClient([cluster.url("n2")]) as client:
        cut = Tables(client).at(epoch=epoch)
        assert (cut.index, cut.versions, cut.exact) == (
            last_index(cluster),
            {"entries": 2, "events": 1},
            True,
        )
        with pytest.raises(NotFound, match="no-such-cut"):
            Tables(client).at(epoch=epoch + 1)


def test_waiting_for_a_record_ends_when_it_is_in_the_table(cluster: Cluster, entries: DeltaFiles) -> None:
    appended = cluster.append("n2", "a", "b").json()
    last = appended["last_index"]
    eventually(lambda: cluster.status("n1")["committed_index"] >= last, what="n1 has it")
    lagging = get(cluster, "tables/entries").json()
    assert lagging["lag_records"] == 2
    assert lagging["lag_ms"] >= 0
    assert lagging["materialized_index"] == appended["first_index"] - 1
    with CommitlogClient([cluster.url("n3"), cluster.url("n1")], give_up_s=1) as client:
        with pytest.raises(Unavailable, match="not-yet-materialized"):
            Tables(client).wait(last, timeout_ms=50)
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(Tables(client).wait, last, timeout_ms=20_000)
            version = entries.bring(appended["first_index"], last + 1, timestamp_ms=4_000)
            table = waiting.result(20)
    assert (table.version, table.materialized_index, table.lag_records) == (version, last, 0)


def test_records_trimmed_before_a_table_held_them_are_not_held(cluster: Cluster, folder: Path) -> None:
    root = folder / "delta" / "short"
    shutil.rmtree(root, ignore_errors=True)  # of a first attempt
    table = DeltaFiles(root / "entries")
    table.create(timestamp_ms=1_000)
    held = append_five(cluster, "short")
    table.bring(held - 4, held + 1, timestamp_ms=2_000)
    append_five(cluster, "short")
    begin = append_five(cluster, "short") - 4
    trim(cluster, "short", begin)
    for node in ("n1", "n2"):
        found = get(cluster, "tables/entries?timeout_ms=1", node, "short").json()
        assert found["materialized_index"] == held
    late = get(cluster, f"tables/entries:wait?index={held + 1}&timeout_ms=10", log="short")
    assert (late.status_code, late.json()["code"]) == (504, "not-yet-materialized")
    move_cursor(cluster, "short", begin)  # its job had them in the table, from which they were removed
    assert get(cluster, "tables/entries", log="short").json()["materialized_index"] == held
    table.commit({"remove": {"path": "part-1.parquet"}}, operation="RESTORE")
    table.added.clear()
    assert get(cluster, "tables/entries", log="short").json()["materialized_index"] == -1
    table.commit({"metaData": {"configuration": {BEGIN_PROPERTY: str(begin)}}})  # an empty table of a new job
    assert get(cluster, "tables/entries", log="short").json()["materialized_index"] == begin - 1


def test_records_trimmed_before_typed_tables_held_them_are_not_held(cluster: Cluster, folder: Path) -> None:
    """The typed tables follow `entries`, whose job has moved its cursor, by seconds and more."""
    root = folder / "delta" / "typed"
    shutil.rmtree(root, ignore_errors=True)  # of a first attempt
    tables = [DeltaFiles(root / name) for name in ("entries", "records", "dead_letters", "current")]
    for table in tables:
        table.create()
    held = append_five(cluster, "typed")
    for table in tables[:2]:
        table.bring(held - 4, held + 1)
    tables[3].commit({"txn": {"appId": application_of("current"), "version": held + 1}})
    last = append_five(cluster, "typed")
    tables[0].bring(held + 1, last + 1)
    move_cursor(cluster, "typed", last + 1)
    trim(cluster, "typed", last + 1)
    end = last_index(cluster, "typed")
    found = {each["name"]: each for each in get(cluster, "tables", log="typed").json()["tables"]}
    assert (found["entries"]["materialized_index"], found["entries"]["lag_records"]) == (end, 0)
    for name in ("records", "dead_letters", "current"):
        assert (found[name]["materialized_index"], found[name]["lag_records"]) == (held, 5)
        late = get(cluster, f"tables/{name}:wait?index={last}&timeout_ms=10", log="typed")
        assert (late.status_code, late.json()["code"]) == (504, "not-yet-materialized")
    tables[1].bring(held + 1, last + 1)
    assert get(cluster, f"tables/records:wait?index={end}", log="typed").status_code == 200


def append_five(cluster: Cluster, log: str) -> int:
    """Append five records, and return the index of the last one."""
    records = [{"value": "x" * 100} for _ in range(5)]
    appended = cluster.call("POST", "n1", f"/v1/logs/{log}/records", json={"records": records})
    return int(appended.json()["last_index"])


def trim(cluster: Cluster, log: str, begin: int) -> None:
    """Trim the log to `begin` at both of its nodes."""
    wanted = {"until_index": begin, "force": True}
    assert cluster.call("POST", "n1", f"/v1/logs/{log}:trim", json=wanted).status_code == 200
    for node in ("n1", "n2"):
        eventually(
            lambda node=node: get(cluster, "tail", node, log).json()["begin_index"] == begin,  # type: ignore[misc]
            what="it is trimmed",
        )


def move_cursor(cluster: Cluster, log: str, index: int) -> None:
    cursor = {"index": index, "fence": True}
    moved = cluster.call("PUT", "n1", f"/v1/logs/{log}/cursors/__entries", json=cursor)
    assert moved.status_code == 200
    cluster.wait_even(log)


def test_a_table_of_a_log_that_had_this_name_before_holds_nothing_of_this_one(
    cluster: Cluster, again: DeltaFiles
) -> None:
    ids = ("0123456789abcdef", cluster.get("n1", "/v1/logs/again").json()["id"])
    again.create(**{LOG_ID_PROPERTY: ids[0]})

    def materialized_index() -> int:
        return int(get(cluster, "tables/entries", log="again").json()["materialized_index"])

    before = materialized_index()
    first = cluster.append("n1", "one", "two", log="again").json()["first_index"]
    again.bring(first, first + 2)
    eventually(lambda: cluster.status("n1", "again")["committed_index"] > first, what="n1 knows both")
    assert materialized_index() == before
    assert get(cluster, f"tables:at?index={first}", log="again").json()["code"] == "no-such-cut"
    again.commit({"metaData": {"configuration": {LOG_ID_PROPERTY: ids[1]}}})
    assert materialized_index() == first + 1


def test_a_table_that_cannot_be_read_is_named(cluster: Cluster, again: DeltaFiles) -> None:
    again.create()
    (again.log / f"{1:020d}.json").write_text("no json")
    for answer in (get(cluster, "tables", log="again"), get(cluster, "tables/entries", log="again")):
        assert (answer.status_code, answer.json()["code"]) == (500, "internal")
        assert answer.json()["detail"].startswith(f"the Delta log of {again.folder}: JSONDecodeError")


def test_a_point_that_is_not_in_the_tables_yet_is_waited_for(cluster: Cluster, entries: DeltaFiles) -> None:
    appended = cluster.append("n1", "late").json()
    last = appended["last_index"]
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(get, cluster, f"tables:at?index={last}&timeout_ms=20000")
        version = entries.bring(appended["first_index"], last + 1, timestamp_ms=9_000)
        answer = waiting.result(20)
    assert answer.json()["tables"]["entries"] == version


def test_a_node_without_a_copy_reports_nothing_of_its_own(cluster: Cluster) -> None:
    client = LogReads([cluster.url("n3")], "pair")
    try:
        nodes = {node.id: node for node in client.nodes()}
        assert client.events(nodes["n1"], 0).events[0]["node"] == "n1"
        for ask in (client.epochs, client.committed_index, lambda node: client.events(node, 0)):
            with pytest.raises(Unreachable, match="421"):
                ask(nodes["n3"])
    finally:
        client.close()


def test_digests_of_the_log_are_those_of_its_records(cluster: Cluster) -> None:
    """Page by page, whatever the blocks; of every batch, also of a part of one."""
    for number in range(30):
        batch = [
            {"value": "v" * 1_000, "key": f"{number}-{at}", "headers": [["h", "1"]]} for at in range(100)
        ]
        cluster.call("POST", "n1", "/v1/logs/pair/records", json={"records": batch}).raise_for_status()
    with CommitlogClient([cluster.url("n3")], log="pair") as client:
        end = client.tail()["committed_index"] + 1
        records, _, _ = client.read_arrow(0, limit=100_000, max_bytes=64 * 1024 * 1024)
        for first, until, block in ((0, end, 10_000), (7, end - 5, 100), (0, end + 50, 1), (150, 160, 10)):
            inside = pc.and_(pc.greater_equal(records["index"], first), pc.less(records["index"], until))
            wanted = block_sums(records.filter(inside), block)
            reported: dict[int, BlockSum] = {}
            for page in Tables(client).digests(first, until, block):
                for start, part in page.sums.items():
                    reported[start] = reported.get(start, BlockSum()) + part
            assert reported == wanted
    whole = get(cluster, "digests", "n2", log="pair").json()
    assert (whole["from_index"], whole["next_index"], whole["has_more"]) == (0, end, False)
    assert sum(block["count"] for block in whole["blocks"]) == 3_000
    assert get(cluster, "digests?block=0", log="pair").json()["code"] == "invalid-request"


def test_a_node_gives_its_own_loss_receipts(cluster: Cluster, folder: Path) -> None:
    with CommitlogClient([cluster.url("n1")]) as client:
        records, _, _ = client.read_arrow(0)
    name = f"{2:020d}-{5:020d}-{9:020d}.arrow"
    receipts = folder / "n1" / "receipts" / "default"
    receipts.mkdir(parents=True)
    with pa.ipc.new_file(receipts / name, records.schema) as writer:
        writer.write(records)
    answer = get(cluster, f"receipts/{name}")
    assert answer.headers["content-type"] == "application/vnd.apache.arrow.file"
    assert pa.ipc.open_file(answer.content).read_all().equals(records)
    for node, wanted in (("n2", name), ("n1", "cluster.toml"), ("n1", "..%2F..%2Fnode.json")):
        refused = get(cluster, f"receipts/{wanted}", node)
        assert (refused.status_code, refused.json()["code"]) == (404, "not-found")


def test_the_command_line_shows_waits_and_travels(cluster: Cluster, entries: DeltaFiles) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(cli, ["tables", "--endpoint", cluster.url("n1"), *arguments])
        return result.exit_code, result.output

    code, shown = run()
    assert code == 0
    assert "lag (records)" in shown
    assert "events" in shown
    end = str(last_index(cluster))
    assert '"materialized_index": ' + end in run("--wait", end, "--json")[1]
    assert run("--wait", "1000000", "--timeout-ms", "10")[0] == 5
    assert '"exact": true' in run("--at-index", end, "--json")[1]
    assert "Versions at index" in run("--at-index", "3")[1]
    assert run("--at-epoch", "1000000")[0] == 4
    assert run("--at-epoch", "1", "--wait", "1")[0] == 2


def test_a_wait_may_begin_before_the_table_is_there(cluster: Cluster, folder: Path) -> None:
    with CommitlogClient([cluster.url("n1")], log="pair") as client, ThreadPoolExecutor() as pool:
        index = client.append(["early"]).last_index
        waiting = pool.submit(Tables(client).wait, index, timeout_ms=20_000)
        table = DeltaFiles(folder / "delta" / "pair" / "entries")
        table.create()
        version = table.bring(0, index + 1)
        assert waiting.result(20).version == version


def test_every_table_of_the_job_is_waited_for_and_has_a_lag(cluster: Cluster, folder: Path) -> None:
    """Tables of epochs end before the epoch that they lack; those of the journals where `events` does."""
    last = cluster.append("n1", "one", "two", log="follow").json()["last_index"]
    root = folder / "delta" / "follow"
    shutil.rmtree(root, ignore_errors=True)  # of a first attempt
    events, epochs, watermarks = (DeltaFiles(root / name) for name in ("events", "epochs", "watermarks"))
    for table in (events, epochs, watermarks):
        table.create()
    other = DeltaFiles(root / "other")
    other.create()

    def held() -> dict[str, int | None]:
        eventually(lambda: cluster.status("n1", "follow")["committed_index"] >= last, what="n1 has it")
        found = get(cluster, "tables", log="follow").json()["tables"]
        return {table["name"]: table["materialized_index"] for table in found}

    assert held() == {"epochs": -1, "events": None, "other": None, "watermarks": None}
    assert get(cluster, "tables/epochs", log="follow").json()["lag_records"] == 2
    late = get(cluster, f"tables/events:wait?index={last}&timeout_ms=10", log="follow")
    assert (late.status_code, late.json()["code"]) == (504, "not-yet-materialized")
    epoch = get(cluster, "epochs", log="follow").json()["epochs"][-1]["epoch"]
    stats = json.dumps({"numRecords": 1, "maxValues": {"epoch": epoch}})
    epochs.commit({"add": {"path": "part-0.parquet", "size": 1, "stats": stats}})
    with CommitlogClient([cluster.url("n1")], log="follow") as client, ThreadPoolExecutor() as pool:
        assert Tables(client).wait(last, table="epochs").lag_records == 0
        waiting = pool.submit(Tables(client).wait, last, table="watermarks", timeout_ms=20_000)
        events.commit(note={"covered_index": last})
        assert waiting.result(20).materialized_index >= last  # type: ignore[operator]
    events.commit(note={"covered_index": 0})  # from the journal of a node that was down
    events.commit(operation="OPTIMIZE")
    assert held()["events"] == held()["watermarks"] == held()["epochs"] >= last  # type: ignore[operator]
    refused = get(cluster, "tables/other:wait?index=0", log="follow")
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid-request")
    arguments = ["tables", "--wait", str(last), "--table", "events", "--log", "follow", "--json"]
    shown = CliRunner().invoke(cli, [*arguments, "--endpoint", cluster.url("n1")])
    assert '"name": "events"' in shown.output
