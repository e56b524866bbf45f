"""`commitlog up`: what it checks before it starts a cluster, and what it reports of one that is not ready."""

import fcntl
import shlex
import signal
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from app.cli import up
from app.cli.context import CommandFailed
from app.cli.delta.materialize import materialize_command
from app.cli.main import cli
from app.local.cluster import LOCK, ClusterError, LocalCluster
from app.local.processes import StopRequested
from tests.unit.cli.fake_service import Scripted, fake_service
from tests.unit.cli.test_client import closed_url


@pytest.mark.parametrize(
    ("taken", "sentence"),
    [
        ((8101,), "port 8101 is in use on 127.0.0.1: stop what uses it, or choose another --port"),
        (
            (8101, 9101),
            "ports 8101, 9101 are in use on 127.0.0.1: stop what uses them, or choose another --port",
        ),
    ],
)
def test_taken_ports_are_named(
    taken: tuple[int, ...], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up, "port_is_free", lambda port: port not in taken)
    with pytest.raises(CommandFailed) as failed:
        up.check_ports(8101, 3)
    assert failed.value.message == sentence


def test_the_same_command_again_reports_the_cluster_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ports are in use too: that would send the user to look for another program."""
    monkeypatch.setattr(up, "port_is_free", lambda _port: False)
    again = ["up", "--no-spark", "--data", str(tmp_path)]
    with (tmp_path / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        running = CliRunner().invoke(cli, again)
    ended = CliRunner().invoke(cli, again)
    assert running.exit_code == ended.exit_code == 1
    assert running.stderr == f"commitlog: a cluster runs in {tmp_path}: stop it, or use another folder\n"
    assert "are in use on 127.0.0.1" in ended.stderr


def test_a_cluster_that_is_not_ready_in_time_names_the_logs_that_it_waits_for(tmp_path: Path) -> None:
    readiness = {"ready": False, "logs": {"default": False, "pay": True, "orders": False}, "failing": {}}
    with fake_service(lambda _: Scripted(503, readiness)) as node:
        cluster = LocalCluster(tmp_path, nodes=1, port=urlsplit(node.url).port or 0)
        with pytest.raises(ClusterError) as late:
            cluster.wait_ready(timeout_s=0.1)
    log = cluster.node("n1").folder / "log"
    assert str(late.value) == (
        "n1 not ready after 0 s: the logs default, orders have no leader or are in repair "
        f"(docs/operations.md, section 7); see {log}"
    )


def test_a_cluster_whose_node_is_silent_is_late_without_a_reason_of_logs(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, nodes=1, port=urlsplit(closed_url()).port or 0)
    with pytest.raises(ClusterError, match=r"^n1 not ready after 0 s: http.* does not answer .*; see "):
        cluster.wait_ready(timeout_s=0.1)


def test_a_spark_job_that_ends_is_reported_with_the_command_that_starts_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class EndedJob:
        endings = iter(("was ended by SIGKILL; its log: /log",))

        def fallen(self) -> str:
            try:
                return next(self.endings)
            except StopIteration:
                raise StopRequested(signal.SIGTERM) from None

    monkeypatch.setattr(up, "WATCH_INTERVAL_S", 0)
    cluster = LocalCluster(tmp_path / "a folder", nodes=2, port=8101)
    with pytest.raises(StopRequested):
        up._watch(cluster, EndedJob())  # type: ignore[arg-type]
    first, again = capsys.readouterr().err.splitlines()
    assert first == "commitlog: the Spark job was ended by SIGKILL; its log: /log"
    command = again.removeprefix("commitlog: `").removesuffix("` starts it again")
    name, subcommand, *options = shlex.split(command)
    assert (name, subcommand) == ("commitlog", "materialize")
    given = materialize_command.make_context(subcommand, options).params
    assert given["endpoint"] == ("http://127.0.0.1:8101,http://127.0.0.1:8102",)
    assert given["tables"] == str(cluster.tables)
    assert given["log"] == "*"
