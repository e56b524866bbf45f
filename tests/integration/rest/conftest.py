"""The live page without a node, and a node whose log holds records."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import SCRIPTS
from tests.support.cluster import Cluster, running


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the scripts of the live page."""
    shutil.copytree(SCRIPTS, tmp_path / "site")
    return tmp_path / "site"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One node whose log holds: 0 control, then 20 appends of 5 records k0..k4 at timestamps 1000, 2000, …"""
    with running(tmp_path_factory.mktemp("filled"), 1) as cluster:
        for number in range(20):
            records = [
                {"value": f"v{number}-{row}", "key": f"k{row}", "timestamp": (number * 5 + row + 1) * 1000}
                for row in range(5)
            ]
            answer = cluster.call("POST", "n1", "/v1/logs/default/records", json={"records": records})
            assert answer.status_code == 200
        yield cluster
