"""`commitlog schema` on a cluster, and schemas in a backup: restored in order with the records."""

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from app.cli.main import cli
from app.client import CommitlogClient, ConditionFailed
from tests.support.cluster import Cluster


@pytest.fixture
def names(own_logs: list[str]) -> tuple[str, str]:
    made = f"typed-{uuid.uuid4().hex}", f"typed-{uuid.uuid4().hex}"
    own_logs += made
    return made


def run(cluster: Cluster, log: str, *arguments: str, exit_code: int = 0) -> Result:
    done = CliRunner().invoke(cli, [*arguments, "-e", cluster.url("n1"), "-l", log])
    assert done.exit_code == exit_code, (done.output, done.stderr)
    return done


def in_order(client: CommitlogClient) -> list[Any]:
    """Values of data records, and versions of the schema between them."""
    page = client.read(from_index=0, limit=1_000, include="control")
    found: list[Any] = []
    for record in page.records:
        content = record["value"]
        if record["type"] == "data":
            found.append(content)
        elif json.loads(content)["kind"] == "schema":
            found.append(json.loads(content)["version"])
    return found


def test_infer_reports_records_that_are_not_objects(
    cluster: Cluster, names: tuple[str, str], tmp_path: Path
) -> None:
    log, _ = names
    assert cluster.call("POST", "n1", "/v1/logs", json={"name": log, "replicas": 2}).status_code == 201
    assert "There are no records with a value." in run(cluster, log, "schema", "infer", exit_code=1).stderr
    with CommitlogClient(cluster.url("n1"), log=log) as client:
        client.append(['{"id": 1, "total": 2.5}', '{"id": 2, "total": "n/a"}'])
        broken = client.append(["no JSON"]).first_index
    done = run(cluster, log, "schema", "infer")
    assert json.loads(done.stdout)["required"] == ["id"]
    assert f"1 of 3 records does not match this schema; the first one is at index {broken}:" in done.stderr
    assert "`_rescued`: /total (number, string)\n" in done.stderr
    empty = tmp_path / "empty.json"
    empty.write_text("\n")
    assert "empty.json is empty" in run(cluster, log, "schema", "check", str(empty), exit_code=2).stderr


def test_a_schema_is_inferred_set_checked_backed_up_and_restored(
    cluster: Cluster, names: tuple[str, str], tmp_path: Path
) -> None:
    log, copy = names
    assert cluster.call("POST", "n1", "/v1/logs", json={"name": log, "replicas": 2}).status_code == 201
    file = tmp_path / "orders.json"
    with CommitlogClient(cluster.url("n1"), log=log) as client:
        client.append(['{"id": 1, "city": "Oslo"}', '{"id": 2}'])
        file.write_text(run(cluster, log, "schema", "infer").stdout)
        run(cluster, log, "schema", "show", exit_code=4)
        checked = json.loads(run(cluster, log, "schema", "check", str(file), "--json").stdout)
        assert (checked["version"], checked["records"], checked["mismatches"]) == (None, 2, [])
        run(
            cluster,
            log,
            "schema",
            "set",
            str(file),
            "--key",
            "id",
            "--on-invalid",
            "reject",
            "--if-match",
            "0",
        )
        assert [each["version"] for each in client.schemas()] == [1]
        assert client.schema()["key_columns"] == ["id"]
        run(cluster, log, "schema", "set", str(file))  # without options: they are kept, so nothing changes
        assert client.schema()["version"] == 1
        client.append(['{"id": 3}', '{"id": 4}'])

        other = tmp_path / "other.ddl"
        other.write_text("id STRING")
        failed = run(cluster, log, "schema", "check", str(other), "--json", exit_code=1)
        assert json.loads(failed.stdout)["differences"]
        assert len(json.loads(failed.stdout)["mismatches"]) == 4
        failed = run(cluster, log, "schema", "set", str(other), "--key", "id", exit_code=1)
        assert "id" in failed.stderr
        run(
            cluster,
            log,
            "schema",
            "set",
            str(other),
            "--compatibility",
            "none",
            "--if-match",
            "3",
            exit_code=3,
        )
        run(cluster, log, "schema", "set", str(tmp_path / "orders.json"), "--format", "avro", exit_code=2)
        changed = {"type": "object", "properties": {"id": {"type": "integer"}, "note": {"type": "string"}}}
        with pytest.raises(ConditionFailed):
            client.put_schema(changed, if_match=7)
        client.put_schema(changed, compatibility="none")
        client.append(['{"id": 5, "note": "x"}'])
        listed = json.loads(run(cluster, log, "schema", "list", "--json").stdout)["schemas"]
        assert listed == client.schemas()
        before = in_order(client)
    assert [each for each in before if isinstance(each, int)] == [1, 2]

    folder = str(tmp_path / "backup")
    run(cluster, log, "backup", folder)
    done = json.loads(run(cluster, copy, "restore", folder, "--json").stdout)
    assert (done["records"], done["schemas"]) == (5, 2)
    run(cluster, copy, "restore", folder)  # again: nothing is stored twice
    with CommitlogClient(cluster.url("n1"), log=copy) as client:
        assert in_order(client) == before
