"""A full disk, folders that are not what they should be: named, survived where possible, never guessed."""

import resource
import shutil
from collections.abc import Iterator

import httpx
import pytest

from tests.support.cluster import Cluster, eventually, running
from tests.support.damage import log_folder, segments

VALUE = "v" * 10_000
NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    logs = ({"name": "full"}, {"name": "one"}, {"name": "two"})
    with running(tmp_path_factory.mktemp("troubled"), 3, logs=logs) as cluster:
        yield cluster


def limit_files(cluster: Cluster, node: str, size_bytes: int | None) -> None:
    """From now on no file of the node may grow past a size: a disk without room, and with room again."""
    limits = NO_LIMIT if size_bytes is None else (size_bytes, resource.RLIM_INFINITY)
    resource.prlimit(cluster.pid(node), resource.RLIMIT_FSIZE, limits)


@pytest.mark.rule("D-28")
def test_a_full_disk_refuses_appends_and_takes_them_again_when_there_is_room(troubled: Cluster) -> None:
    cluster, log = troubled, "full"
    leader = cluster.leader(log)
    acknowledged = [f"{number}-{VALUE}" for number in range(10)]
    for value in acknowledged:
        assert cluster.append(leader, value, log=log).status_code == 200
    size = segments(log_folder(cluster.folder / leader, log))[-1].stat().st_size
    limit_files(cluster, leader, size + 25_000)

    def refused() -> httpx.Response | None:
        value = f"{len(acknowledged)}-{VALUE}"
        answer = cluster.append(leader, value, log=log)
        if answer.status_code == 200:
            acknowledged.append(value)
            return None
        return answer

    problem = eventually(refused, what="the disk is full").json()
    assert (problem["code"], problem["status"], problem["outcome"]) == ("storage-full", 507, "not_applied")
    assert cluster.append(leader, f"x-{VALUE}", log=log).status_code == 507
    forwarded = cluster.append(next(node for node in cluster.ids if node != leader), f"y-{VALUE}", log=log)
    assert (forwarded.status_code, forwarded.json()["code"]) == (507, "storage-full")
    for node in cluster.ids:
        assert cluster.values(node, log=log) == acknowledged  # reads go on, and nothing refused is there
    assert cluster.leader(log) == leader
    limit_files(cluster, leader, None)
    assert cluster.append(leader, "room again", log=log).status_code == 200
    cluster.wait_even(log)
    for node in cluster.ids:
        assert cluster.values(node, log=log) == [*acknowledged, "room again"]
    cluster.stop(leader)
    cluster.start(leader)
    cluster.wait_ready(leader)
    assert cluster.values(leader, log=log) == [*acknowledged, "room again"]


def test_a_full_disk_of_a_follower_stops_no_client(troubled: Cluster) -> None:
    cluster, log = troubled, "full"
    follower, leader = cluster.follower(log), cluster.leader(log)
    size = segments(log_folder(cluster.folder / follower, log))[-1].stat().st_size
    limit_files(cluster, follower, size + 15_000)
    for number in range(5):
        assert cluster.append(leader, f"more-{number}-{VALUE}", log=log).status_code == 200
    assert cluster.get(follower, f"/v1/logs/{log}/records", params={"last": 1}).status_code in (200, 503)
    limit_files(cluster, follower, None)
    cluster.wait_even(log)
    assert cluster.values(follower, log=log) == cluster.values(leader, log=log)


def test_folders_that_were_mixed_up_are_refused_by_name(troubled: Cluster) -> None:
    cluster, node = troubled, "n3"
    for log in ("one", "two"):
        assert cluster.append("n1", log, log=log).status_code == 200
        cluster.wait_even(log)
    assert cluster.stop(node) == 0
    one, two = (log_folder(cluster.folder / node, log) for log in ("one", "two"))
    aside = one.with_name("aside")

    def swap() -> None:
        one.rename(aside)
        two.rename(one)
        aside.rename(two)

    swap()
    cluster.start(node)
    assert cluster.wait_exit(node) == 1
    assert "the folder belongs to another log" in cluster.lines(node)
    swap()
    stamp = cluster.folder / node / "node.json"
    kept = stamp.read_bytes()
    shutil.copy(cluster.folder / "n1" / "node.json", stamp)
    cluster.start(node)
    assert cluster.wait_exit(node) == 2
    assert "the folder belongs to node 'n1'" in cluster.lines(node)
    stamp.write_bytes(kept)
    shutil.move(one, aside)
    one.write_text("no folder")
    cluster.start(node)
    assert cluster.wait_exit(node) == 1
    one.unlink()
    shutil.move(aside, one)
    cluster.start(node)
    cluster.wait_ready(node)
    for log in ("one", "two"):
        cluster.wait_even(log)
        assert cluster.values(node, log=log) == [log]
