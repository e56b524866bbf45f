"""One cluster of three for all tests that leave it as it was: each writes to the log, none breaks it."""

from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, running


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    logs = ({"name": "default"}, {"name": "other"}, {"name": "quiet", "durability": "replicated"})
    logs = (*logs, {"name": "pair", "replicas": ["n1", "n2"]})
    with running(tmp_path_factory.mktemp("cluster"), 3, logs=logs) as started:
        yield started
