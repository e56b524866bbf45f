"""Shared by all tests: rule markers must name rules of app/RULES.md; tests are distributed to processes.

`make test` runs the suite in three processes, since tests of real processes wait half of their time. A file's
tests stay in one, for they share its nodes. No more than two have a Spark session, which needs memory: one
begins with the longest files that use it; the other with the tests that start Sparks of their own, which stay
together for the same reason, and then takes files of the session from the end. The third one takes the rest,
the longest first. Whichever is ready first takes what another one has left, from the end, so that all end at
the same time.
"""

import gc
import os
import tempfile
from collections.abc import Generator, Mapping
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
OWN_SPARKS = (
    f"{SPARK}drivers/test_kills.py",
    f"{SPARK}session/test_connect.py",
    f"{SPARK}session/test_standalone_cluster.py",
    "tests/e2e/test_demo.py",
    "tests/e2e/test_up.py",
)
REAL_PROCESSES = ("tests/chaos/", "tests/e2e/", "tests/fault/", "tests/integration/", SPARK)
LONGEST = (
    f"{SPARK}notebooks/test_notebooks.py",
    f"{SPARK}drivers/test_steps.py",
    f"{SPARK}typed/test_restored.py",
    f"{SPARK}typed/test_typed_values.py",
    f"{SPARK}sink/test_sink.py",
    f"{SPARK}tables/test_upkeep.py",
    "tests/simulation/raft/test_simulation.py",
    "tests/e2e/test_documented_commands.py",
    "tests/unit/test_types.py",
    "tests/mutants/test_mutants.py",
)


def scope_of(nodeid: str) -> str:
    """Return the name of the group of tests that runs in one process, one after the other."""
    file = nodeid.partition("::")[0]
    return SPARKS if file in OWN_SPARKS else file


def next_scope(process: str, left: Mapping[str, object]) -> str:
    """Return the group of tests that a process takes of those that are left."""
    of_session = [scope for scope in left if scope.startswith(SPARK)]
    if process == "gw0":
        own = of_session
    elif process == "gw1":
        own = [SPARKS] if SPARKS in left else of_session[::-1]
    else:
        own = [scope for scope in left if scope not in (SPARKS, *of_session)]
    return next(iter(own), next(reversed(left)))


class Scheduling(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(next_scope(node.gateway.id, self.workqueue), last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling:
    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage meanwhile, and none of what is kept later: that is a third of this step."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


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
