"""Shared by all tests: rule markers must name rules of app/RULES.md; tests are distributed to processes.

`make test` runs the suite in two processes. A file's tests stay in one, for they share its nodes; so do those
of Spark that share a session, and those that start Sparks of their own. The longest begin first; some files
of Spark go to the process that is free, so that both end at the same time.
"""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from tests.rules import read_rules
from tests.support.cluster import Cluster

settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")  # a busy machine is slow, and that is no failure

Cluster.forked = True
_STATE = tempfile.TemporaryDirectory(prefix="commitlog-state-")  # removed when the process ends
os.environ["COMMITLOG_STATE"] = str(Path(_STATE.name) / "nodes.json")

SPARK = "tests/spark/"
SPARKS = f"{SPARK}own"
OWN_PROCESSES = ("session/test_connect.py", "materialize/test_kills.py", "session/test_standalone_cluster.py")
EITHER = (
    "notebooks/test_failover_notebook.py",
    "materialize/test_quarantine.py",
    "materialize/test_program.py",
    "sink/test_sink.py",
)
REAL_PROCESSES = ("tests/chaos/", "tests/e2e/", "tests/fault/", "tests/integration/", SPARK)
LONGEST = (
    SPARK,
    SPARKS,
    *(f"{SPARK}{name}" for name in EITHER),
    "tests/simulation/raft/test_simulation.py",
    "tests/e2e/test_demo.py",
)


def scope_of(nodeid: str) -> str:
    """Return the name of the group of tests that runs in one process, one after the other."""
    file = nodeid.partition("::")[0]
    if not file.startswith(SPARK) or file.removeprefix(SPARK) in EITHER:
        return file
    return SPARKS if file.removeprefix(SPARK) in OWN_PROCESSES else SPARK


class Scheduling(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling:
    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    begins = {scope: place for place, scope in enumerate(LONGEST)}
    items.sort(key=lambda item: begins.get(scope_of(item.nodeid), len(LONGEST)))
    known = read_rules()
    for item in items:
        if item.nodeid.startswith(REAL_PROCESSES):
            item.add_marker(pytest.mark.flaky(reruns=1))  # shown as "rerun"; see tests/README.md
        for marker in item.iter_markers("rule"):
            unknown = [number for number in marker.args if number not in known]
            if unknown or not marker.args:
                raise pytest.UsageError(f"{item.nodeid}: no such rule in app/RULES.md: {unknown or 'none'}")
