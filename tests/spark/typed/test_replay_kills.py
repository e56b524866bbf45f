"""Dead letters move to `records` once each, after SIGKILL of their replay at each of its commits."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.materialize.config import MaterializeConfig
from spark_jobs.materialize.replay import DeadLetterReplay
from spark_jobs.materialize.typed import TypedTables
from spark_jobs.run import materialize
from spark_jobs.source.log_reads import LogReads
from spark_jobs.tables.table import DEAD_LETTERS
from spark_jobs.typed.current import CurrentTable
from tests.spark.conftest import endpoints
from tests.spark.no_spark import no_spark
from tests.spark.source.log_server import FakeLog, FakeReplica
from tests.spark.typed.law import check_law, rows_of
from tests.spark.typed.replay_to_kill import COMMITS
from tests.spark.typed.test_typed import path_in, to_json
from tests.spark.user_restore import restore


@pytest.fixture
def log() -> FakeLog:
    """Letters that the second version of the schema reads. A tombstone is newer than one of them, a record
    than another; the last one stays a letter."""
    log = FakeLog()
    log.open_term(1, "n1")
    log.set_schema("id INT NOT NULL")  # index 1
    for key in (b"stays", b"removed", b"older"):
        log.append(to_json(id=key.decode()), key=key)
    log.append(to_json(id=1), key=b"integer")
    log.append(b"no JSON", None, key=b"removed")
    log.set_schema("id STRING NOT NULL", compatibility="none")  # index 8
    log.append(to_json(id="newer"), key=b"older")
    return log


def test_each_letter_moves_once_after_a_kill_of_the_replay_at_any_commit(
    spark: SparkSession, replicas: list[FakeReplica], log: FakeLog, tmp_path: Path
) -> None:
    config = MaterializeConfig(endpoint=endpoints(replicas), tables=tmp_path, available_now=True)
    materialize(config, spark=no_spark())
    folder = tmp_path / "default"

    def indexes(name: str, column: str = "_index") -> list[int]:
        return sorted(row[column] for row in rows_of(folder / name))

    assert indexes("dead_letters", "index") == [2, 3, 4, 6]
    gateway = spark.sparkContext._gateway.gateway_parameters  # type: ignore[union-attr]
    command = [sys.executable, "-m", "tests.spark.typed.replay_to_kill", str(folder), endpoints(replicas)]
    command += [",".join(COMMITS), f"{gateway.port}:{gateway.auth_token}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert json.loads(done.stdout) == [*[-signal.SIGKILL] * len(COMMITS), 0], done.stderr
    assert indexes("dead_letters", "index") == [6]
    assert indexes("records") == [5]
    assert indexes("records_v2") == [2, 3, 4, 9]
    assert indexes("current") == [5]
    assert indexes("current_v2") == [2, 9]


def test_a_repair_completes_what_a_killed_replay_has_begun(
    spark: SparkSession,
    replicas: list[FakeReplica],
    log: FakeLog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Letters that are in `records` leave `dead_letters`, so that no later replay finds them."""
    config = MaterializeConfig(endpoint=endpoints(replicas), tables=tmp_path, available_now=True)
    materialize(config, spark=no_spark())
    folder, client = tmp_path / "default", LogReads(config.endpoints, "default")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(CurrentTable, "apply_again", killed)
        with pytest.raises(KeyboardInterrupt):
            DeadLetterReplay(spark, client, path_in(folder)).run()
    restore(folder / DEAD_LETTERS.name, 0)
    TypedTables(spark, client, path_in(folder), follows=False).extend(log.next_index)
    check_law(log, folder)
