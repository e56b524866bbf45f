"""One cluster of three for all tests that leave it as it was: each writes to the log, none breaks it."""

from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, eventually, running


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    logs = ({"name": "default"}, {"name": "other"}, {"name": "quiet", "durability": "replicated"})
    logs = (*logs, {"name": "pair", "replicas": ["n1", "n2"]})
    with running(tmp_path_factory.mktemp("cluster"), 3, logs=logs) as started:
        yield started


@pytest.fixture
def own_logs(cluster: Cluster) -> Iterator[list[str]]:
    """Names to which a test adds those of the logs that it creates: they are deleted on every node at its
    end."""
    names: list[str] = []
    yield names
    for name in names:
        assert cluster.call("DELETE", "n1", f"/v1/logs/{name}").status_code in (202, 204, 404)

    def remaining() -> set[str]:
        answers = [cluster.get(node, "/v1/logs").json() for node in cluster.ids]
        return {log["name"] for answer in answers for log in answer["logs"]} & set(names)

    eventually(lambda: not remaining(), what="the logs are deleted on every node")
