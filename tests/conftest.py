"""Shared by all tests: rule markers must name rules of app/RULES.md; tests are distributed to processes.

`make test` runs the suite in two processes. A file's tests stay in one, for they share its nodes; so do those
that start Sparks of their own, which need the memory. One process begins with the files that use its Spark
session, the other with the rest, both with the longest. Whichever is ready first takes what the other has
left, from the end, so that both end at the same time.
"""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests.rules import read_rules
from tests.support.cluster import Cluster

settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")  # a busy machine is slow, and that is no failure

Cluster.forked = True
_STATE = tempfile.TemporaryDirectory(prefix="commitlog-state-")  # removed when the process ends
os.environ["COMMITLOG_STATE"] = str(Path(_STATE.name) / "nodes.json")

SPARK = "tests/spark/"
SPARKS = "own Sparks"
OWN_SPARKS = ("session/test_connect.py", "drivers/test_kills.py", "session/test_standalone_cluster.py")
REAL_PROCESSES = ("tests/chaos/", "tests/e2e/", "tests/fault/", "tests/integration/", SPARK)
LONGEST = (
    f"{SPARK}notebooks/test_notebooks.py",
    f"{SPARK}drivers/test_steps.py",
    f"{SPARK}typed/test_restored.py",
    f"{SPARK}typed/test_typed_values.py",
    f"{SPARK}sink/test_sink.py",
    f"{SPARK}tables/test_upkeep.py",
    SPARKS,
    "tests/e2e/test_demo.py",
    "tests/simulation/raft/test_simulation.py",
    "tests/e2e/test_documented_commands.py",
    "tests/unit/test_types.py",
    "tests/mutants/test_mutants.py",
)


def scope_of(nodeid: str) -> str:
    """Return the name of the group of tests that runs in one process, one after the other."""
    file = nodeid.partition("::")[0]
    return SPARKS if file.removeprefix(SPARK) in OWN_SPARKS else file


class Scheduling(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        is_first = node.gateway.id == "gw0"
        own = (scope for scope in self.workqueue if scope.startswith(SPARK) is is_first)
        self.workqueue.move_to_end(next(own, next(reversed(self.workqueue))), last=False)
        super()._assign_work_unit(node)


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
