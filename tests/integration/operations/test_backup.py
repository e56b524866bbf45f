"""`commitlog backup` and `restore` on a cluster: every record is restored, once, or the command fails."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import app.cli.backup.restore as restoring
from app.cli.backup import backup as backing_up
from app.cli.context import CommandFailed
from app.cli.main import cli
from app.client import CommitlogClient, Record
from app.client.operations import Operations
from tests.support.cluster import Cluster, eventually, running

LOGS = ("orders-1", "orders-2", "never-made")


def run(cluster: Cluster, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--json", "-e", cluster.url("n1")])


def records_of(cluster: Cluster, log: str) -> list[Any]:
    """Key, value, headers and timestamp of every record."""
    with CommitlogClient(cluster.url("n1"), log=log) as client:
        page = client.read(from_index=0, limit=10_000, encoding="base64")
    fields = ("key_base64", "value", "value_base64", "headers", "timestamp")
    return [[record.get(name) for name in fields] for record in page.records]


@pytest.fixture
def without_logs(own_logs: list[str]) -> None:
    own_logs += LOGS


@pytest.mark.usefixtures("without_logs")
def test_a_log_is_backed_up_grown_restored_and_resumed(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backing_up, "PART_RECORDS", 50)
    monkeypatch.setattr(restoring, "BATCH_RECORDS", 10)
    folder = str(tmp_path / "orders")
    assert run(cluster, "logs", "create", "orders-1", "--retention-bytes", "1000000000").exit_code == 0
    with CommitlogClient(cluster.url("n1"), log="orders-1") as client:
        for start in range(0, 110, 11):
            client.append(
                [
                    Record(b"\xff%d" % n, f"k{n}", [("h", b"\x00\xfe"), ("h", "")])
                    for n in range(start, start + 11)
                ]
            )
            Operations(client).move_cursor("etl", start)  # control records stand between the batches
        client.append([Record(None, "k1"), Record("", None, (), 1_730_000_000_000)])
        middle = client.read(from_index=0, limit=60).records[-1]["index"]
        Operations(client).move_cursor("etl", middle)

        first = json.loads(run(cluster, "backup", folder, "-l", "orders-1", "--cursor", "etl").stdout)
        assert (first["records"], first["added"], first["files"]) == (112, 112, 3)
        client.append(["later"])
        (tmp_path / "orders" / "records-left.partial").write_text("of an interrupted backup")
        second = json.loads(run(cluster, "backup", folder, "-l", "orders-1").stdout)
        assert (second["records"], second["added"], second["id"]) == (113, 1, first["id"])
    assert json.loads(run(cluster, "restore", "--check", folder).stdout)["records"] == 113
    assert run(cluster, "restore", "--check", folder, "--replicas", "1").exit_code == 2
    exists = run(cluster, "restore", folder, "--replicas", "1")
    assert (exists.exit_code, "the log orders-1 exists, on n1, n2, n3" in exists.stderr) == (2, True)

    append, count = restoring._append, 0

    def fail_at_the_ninth(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == 9:
            raise CommandFailed("the power is gone")
        return append(*arguments)

    monkeypatch.setattr(restoring, "_append", fail_at_the_ninth)
    failed = run(cluster, "restore", folder, "--log", "orders-2")
    assert failed.exit_code == 1, failed.stderr
    assert 0 < len(records_of(cluster, "orders-2")) < 113
    monkeypatch.setattr(restoring, "_append", append)
    for _ in range(2):  # the second time nothing is appended
        result = run(cluster, "restore", folder, "--log", "orders-2")
        assert result.exit_code == 0, result.stderr
    done = json.loads(result.stdout)
    assert (done["records"], done["verified"]) == (113, True)
    assert records_of(cluster, "orders-2") == records_of(cluster, "orders-1")
    assert done["retention"]["bytes"] == 1_000_000_000
    moved = run(cluster, "read", "--cursor", "etl", "--limit", "1", "-l", "orders-2", "--encoding", "base64")
    assert json.loads(moved.stdout)["records"][0]["key_base64"] == "azU5"  # k59, as in the first log

    with CommitlogClient(cluster.url("n1"), log="orders-2") as client:
        client.append(["of a writer"])
        more = run(cluster, "restore", folder, "--log", "orders-2")
        assert more.exit_code == 1
        assert "has 1 record that the backup lacks" in json.loads(more.stderr)["detail"]
        Operations(client).trim(60, force=True)
    trimmed = json.loads(run(cluster, "restore", folder, "--log", "orders-2").stderr)["detail"]
    assert "records-00000000000000000001.parquet; the log begins at index" in trimmed

    refused = run(cluster, "restore", folder)  # the log that was backed up
    assert refused.exit_code == 3
    assert "not of this backup" in json.loads(refused.stderr)["detail"]
    other = run(cluster, "backup", folder, "-l", "orders-2")
    assert other.exit_code == 1
    assert "orders-1" in json.loads(other.stderr)["detail"]


@pytest.mark.usefixtures("without_logs")
@pytest.mark.parametrize("knows", [True, False], ids=["known", "unheard"])
def test_a_log_that_is_deleted_and_created_again_between_two_files_is_not_mixed(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows: bool
) -> None:
    """The second log has as many records, so its digests are equal to those of what is read of it. knows:
    the node that is asked for the settings has heard of the deletion."""
    next_records, count = backing_up._next_records, 0
    settings_of, first_settings = Operations.log, []

    def known_settings(operations: Operations, name: str) -> dict[str, Any]:
        first_settings.append(settings_of(operations, name))
        return first_settings[-1 if knows else 0]

    def create(value: str) -> None:
        made = partial(run, cluster, "logs", "create", "orders-1")
        eventually(lambda: made().exit_code == 0, what="the log is created")
        with CommitlogClient(cluster.url("n1"), log="orders-1") as client:
            client.append([f"{value} {n}" for n in range(20)])

    def replaced_at_the_second(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == 2:
            assert run(cluster, "logs", "delete", "orders-1").exit_code == 0
            create("second")
        return next_records(*arguments)

    create("first")
    monkeypatch.setattr(backing_up, "PART_RECORDS", 10)
    monkeypatch.setattr(backing_up, "_next_records", replaced_at_the_second)
    monkeypatch.setattr(Operations, "log", known_settings)
    folder = tmp_path / "orders"
    for _ in range(2):
        refused = run(cluster, "backup", str(folder), "-l", "orders-1")
        assert refused.exit_code == 1, refused.stdout
        assert "was deleted since" in json.loads(refused.stderr)["detail"]
    (part,) = json.loads((folder / "manifest.json").read_text())["parts"]
    assert part["records"] == 10


@pytest.mark.usefixtures("without_logs")
def test_damage_and_missing_files_are_found(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    with CommitlogClient(cluster.url("n1"), log="other") as client:
        client.append(["v"])
    assert run(cluster, "backup", str(folder), "-l", "other").exit_code == 0
    file = next(folder.glob("records-*.parquet"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    damaged = run(cluster, "restore", str(folder), "--log", "never-made")
    assert damaged.exit_code == 1
    assert "damaged" in json.loads(damaged.stderr)["detail"]
    file.unlink()
    assert run(cluster, "restore", "--check", str(folder)).exit_code == 4
    assert run(cluster, "restore", "--check", str(tmp_path)).exit_code == 4
    (tmp_path / "mine").write_text("not a backup")
    assert run(cluster, "backup", str(tmp_path), "-l", "other").exit_code == 1


@pytest.mark.usefixtures("without_logs")
def test_a_restore_into_a_cluster_with_lower_limits_names_the_record_and_writes_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    folder = str(tmp_path / "orders")
    large = Record("v" * 900, "k" * 50, [("\u00e4", "w" * 49)])  # 1 001 bytes: the name has two
    with CommitlogClient(cluster.url("n1"), log="orders-1") as client:
        Operations(client).create_log({"name": "orders-1"})
        client.append(["small"] * 30)
        index = client.append([large, Record("v" * 2_000)]).first_index
    assert run(cluster, "backup", folder, "-l", "orders-1").exit_code == 0

    limits = {"max_record_bytes": 1_000, "max_request_records": 7, "max_request_bytes": 4_000}
    with running(tmp_path, 1, sections={"limits": limits}) as lower:
        refused = run(lower, "restore", folder)
        assert refused.exit_code == 1
        detail = json.loads(refused.stderr)["detail"]
        assert f"the record {index} of {folder} has 1,001 bytes (value, key and headers)" in detail
        assert "the cluster allows 1,000 (max_record_bytes). Records that exceed this: 2." in detail
        assert "Set [limits] max_record_bytes to at least 2000" in detail
        assert lower.get("n1", "/v1/logs/orders-1").status_code == 404

    with running(tmp_path, 1, sections={"limits": {**limits, "max_record_bytes": 2_000}}) as raised:
        restored = run(raised, "restore", folder)
        assert restored.exit_code == 0, restored.stderr
        assert records_of(raised, "orders-1") == records_of(cluster, "orders-1")
