"""Trims through a node that does not lead, in each mode."""

from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, eventually, running

MODES = ("raft", "controller", "classic")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes with a log of each mode."""
    logs = tuple({"name": f"trimmed-{mode}", "replication": mode} for mode in MODES)
    with running(tmp_path_factory.mktemp("trims"), 3, logs=logs) as cluster:
        yield cluster


@pytest.mark.parametrize("replication", MODES)
def test_a_trim_through_a_follower_shows_in_the_next_read_there(own: Cluster, replication: str) -> None:
    log = f"trimmed-{replication}"

    def leading() -> str | None:
        return next((n for n in own.ids if own.status(n, log)["role"] in ("leader", "master")), None)

    leader = eventually(leading, what="a leader")
    follower = next(node for node in own.ids if node != leader)
    for _ in range(5):
        first, second, third = (own.append(follower, "x", log=log).json()["first_index"] for _ in range(3))
        trim = {"until_index": third}
        answer = own.call("POST", follower, f"/v1/logs/{log}:trim", json=trim)
        assert (answer.status_code, answer.json()["begin_index"]) == (200, third)
        read = own.get(follower, f"/v1/logs/{log}/records", params={"from_index": second})
        assert (read.status_code, read.json().get("begin_index")) == (410, third), (first, read.text)
