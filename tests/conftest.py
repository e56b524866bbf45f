"""What all tests share: rule markers name rules that stand in app/RULES.md, and who runs beside whom.

`make test` runs the suite in two processes. A file's tests stay in one, for they share its nodes; so do those
of Spark that share a session.
"""

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.rules import read_rules

SPARK = "tests/spark/"
CLUSTERS = (f"{SPARK}test_connect.py", f"{SPARK}test_standalone_cluster.py")  # start a Spark of their own


class Scheduling(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return SPARK if file.startswith(SPARK) and file not in CLUSTERS else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling:
    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    known = read_rules()
    for item in items:
        for marker in item.iter_markers("rule"):
            unknown = [number for number in marker.args if number not in known]
            if unknown or not marker.args:
                raise pytest.UsageError(f"{item.nodeid}: no such rule in app/RULES.md: {unknown or 'none'}")
