"""Classic HA by real processes: the configuration changes who is master, and disks are replaced."""

import shutil
from pathlib import Path

import pytest

from storage.files import OsFileSystem
from storage.log.hard_state import HardStateFile
from tests.support.cluster import Cluster, eventually

LOG = "/v1/logs/default"
WAIT_S = 40.0  # a process starts within it on a loaded machine
LONG_MS, SHORT_MS = 20_000, 1_000  # of an append that is acknowledged, and of one that waits in vain
QUICK = {"ha": {"ha_opening_wait_ms": 1_000, "ha_refused_interval_max_ms": 1_000}}


def write(
    cluster: Cluster, node: str, value: str, *, timeout_ms: int = LONG_MS, **params: object
) -> tuple[int, str]:
    """(status, code or acks) of an append that this node answers."""
    answer = cluster.append(node, value, params={"timeout_ms": timeout_ms, **params})
    body = answer.json()
    return answer.status_code, str(body.get("code", body.get("acks")))


def make_master(cluster: Cluster, node: str) -> None:
    """Change the file of every node; those that run keep what they have read."""
    text = cluster.config.read_text()
    before = next(line for line in text.splitlines() if line.startswith("master"))
    cluster.config.write_text(text.replace(before, f'master = "{node}"'))


def remove_copy(cluster: Cluster, node: str) -> None:
    """As an operator does who gives up a stopped node's copy."""
    shutil.rmtree(cluster.folder / node / "logs" / "default")
    shutil.rmtree(cluster.folder / node / "journal" / "default")


def has_caught_up(cluster: Cluster, node: str, master: str) -> bool:
    """Return whether the copy of a slave, once new, counts as one that lacks nothing (H-07)."""
    vote = HardStateFile(OsFileSystem(), str(cluster.folder / node / "logs" / "default" / "vote"))
    return vote.load().voted_for == master


def slave(cluster: Cluster, master: str) -> dict[str, object]:
    (found,) = cluster.get(master, f"{LOG}/ha-status").json()["slaves"]
    return dict(found)


@pytest.mark.rule("H-04", "H-07", "H-08")
def test_roles_change_by_configuration(tmp_path: Path) -> None:
    log = {"name": "default", "replication": "classic", "master": "n1"}
    cluster = Cluster(tmp_path, 2, logs=(log,), sections=QUICK)
    try:
        cluster.start()
        cluster.wait_ready()
        # what each kind of acks waits for
        assert write(cluster, "n1", "a") == (200, "quorum")
        assert write(cluster, "n2", "b", acks="all") == (200, "all")
        assert write(cluster, "n1", "c", acks="leader") == (202, "leader")
        cluster.wait_even()
        eventually(
            lambda: has_caught_up(cluster, "n2", "n1"), what="the new copy has caught up", timeout_s=WAIT_S
        )
        cluster.kill("n2")
        assert write(cluster, "n1", "tail", acks="leader") == (202, "leader")
        for acks in ("quorum", "all"):
            late = write(cluster, "n1", "tail", acks=acks, timeout_ms=SHORT_MS)
            assert late == (504, "flush-slave-timeout")
        cluster.kill("n1")

        # the slave is promoted while the old master is gone
        make_master(cluster, "n2")
        cluster.start("n2")
        eventually(
            lambda: write(cluster, "n2", "d", acks="leader")[0] == 202, what="n2 is master", timeout_s=WAIT_S
        )
        assert (cluster.status("n2")["role"], cluster.status("n2")["term"]) == ("master", 2)
        # the old master holds what the new one lacks: it is refused and acknowledges nothing
        cluster.start("n1")
        eventually(lambda: slave(cluster, "n2")["state"] == "REFUSED", what="n1 is refused", timeout_s=WAIT_S)
        reason = str(slave(cluster, "n2")["reason"])
        assert "it holds" in reason or "of another history" in reason  # which of them is the longer one
        assert write(cluster, "n2", "e", timeout_ms=SHORT_MS) == (504, "flush-slave-timeout")
        assert cluster.get("n1", f"{LOG}/records", params={"wait_ms": 0}).status_code == 503
        events = cluster.get("n2", f"{LOG}/events", params={"limit": 1_000}).json()["events"]
        assert len([event for event in events if event["kind"] == "corruption"]) <= 2  # one for each cause

        # its operator gives its copy up
        assert cluster.stop("n1") == 0
        remove_copy(cluster, "n1")
        cluster.start("n1")
        eventually(lambda: write(cluster, "n1", "f") == (200, "quorum"), what="n1 follows", timeout_s=WAIT_S)
        assert cluster.values("n2") == ["a", "b", "c", "d", "e", "f"]
        cluster.wait_even()
        assert cluster.values("n1")[-1] == "f"

        # a master whose copy is lost does not begin the log again, however late its slave starts
        assert [cluster.stop(node) for node in ("n2", "n1")] == [0, 0]
        remove_copy(cluster, "n2")
        cluster.start("n2")

        def waits(what: str) -> str | None:
            found = cluster.get("n2", f"{LOG}/ha-status").json()["waits_for"]
            return found if found and what in found else None

        eventually(lambda: waits("n1 may hold records"), what="n2 waits for n1", timeout_s=WAIT_S)
        cluster.start("n1")
        waits_for = eventually(
            lambda: waits("make n1 the master"), what="n2 knows that n1 holds the log", timeout_s=WAIT_S
        )
        answer = cluster.append("n2", "x", params={"timeout_ms": SHORT_MS})
        assert (answer.status_code, answer.json()["code"]) == (503, "no-leader")
        assert waits_for in answer.json()["detail"]
        assert [cluster.stop(node) for node in cluster.ids] == [0, 0]

        # it is given to the replica that has everything
        make_master(cluster, "n1")
        cluster.start()
        eventually(
            lambda: write(cluster, "n2", "g") == (200, "quorum"), what="n1 is master", timeout_s=WAIT_S
        )
        assert cluster.values("n2")[-2:] == ["f", "g"]
        assert cluster.status("n1")["term"] == 3
    finally:
        cluster.close()
