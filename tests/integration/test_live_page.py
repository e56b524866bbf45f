"""The live page: its files, and the state that it shows once a second."""

from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, eventually


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("live"), 3)
    try:
        cluster.start()
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.close()


@pytest.mark.parametrize(
    ("path", "media_type", "part"),
    [
        ("/ui", "text/html", "/ui/live.js"),
        ("/ui/live.js", "text/javascript", "/ui/state.json"),
        ("/ui/live.css", "text/css", "color-scheme"),
    ],
)
def test_the_page_and_all_that_it_loads_come_from_the_node(
    cluster: Cluster, path: str, media_type: str, part: str
) -> None:
    answer = cluster.get("n1", path)
    assert answer.headers["content-type"].startswith(media_type)
    assert part in answer.text
    assert "://" not in answer.text  # nothing comes from elsewhere


def test_the_state_shows_every_node_and_what_has_happened(cluster: Cluster) -> None:
    leader = cluster.leader()
    assert cluster.append(leader, "x").status_code == 200
    state = cluster.get(cluster.follower(), "/ui/state.json").json()
    assert [node["id"] for node in state["nodes"]] == cluster.ids
    roles = {node["id"]: node["status"]["role"] for node in state["nodes"]}
    assert [node for node, role in roles.items() if role == "leader"] == [leader]
    assert state["epochs"][-1]["leader"] == leader
    assert [event["kind"] for event in state["events"]][-1] == "start"
    assert "watermarks" not in {event["kind"] for event in state["events"]}
    assert cluster.get("n1", "/ui/state.json?log=none").json()["code"] == "log-not-found"
    assert cluster.get("n1", "/ui/other").status_code == 404


def test_a_node_that_is_gone_is_shown_without_a_status(cluster: Cluster) -> None:
    gone = cluster.follower()
    seen_by = cluster.leader()
    cluster.kill(gone)

    def shown() -> bool:
        nodes = cluster.get(seen_by, "/ui/state.json").json()["nodes"]
        return [node["id"] for node in nodes if node["status"] is None] == [gone]

    eventually(shown, what="the node is shown as down")
