"""The state of a served log: its leader, and the refusal of calls once it is not served any more."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.controller.metadata import LogSpec
from app.errors import LogDeleting, ReadIndexUnavailable, Repairing
from app.ha.roles import MANAGER, Lease
from app.log.contract import Role
from app.node import hosted_log as module
from app.node.hosted_log import HostedLog
from app.node.request_waits import Waits
from app.settings.model import LogSettings
from tests.support.in_process import node_in_process
from tests.unit.ha.lab import Replicated


@pytest.mark.rule("A-11")
def test_a_master_without_a_lease_is_no_leader() -> None:
    """It accepts nothing, so that a load balancer must not choose its node for that log's sake."""
    master = Replicated()
    master.lead(epoch=4, lease_ms=None)
    spec = LogSpec(replication="controller", replicas=("n1", "n2"))
    hosted: Any = HostedLog(LogSettings.of_spec("a", spec), 1)
    hosted.driver, hosted.ha = master.core, master.core
    master.deliver(MANAGER, Lease(master.now_ms + 500))
    assert hosted.has_leader
    master.tick(501)
    assert (hosted.has_leader, hosted.leader_id) == (False, "n1")
    master.deliver(MANAGER, Lease(master.now_ms + 500))
    assert hosted.has_leader


def test_a_refusal_without_a_leader_names_the_voters_that_an_election_needs() -> None:
    """Two of three new nodes elect no leader (R-02), and nothing else reports the reason to a client."""
    spec = LogSpec(replication="raft", replicas=("n1", "n2", "n3"))
    hosted = HostedLog(LogSettings.of_spec("a", spec), 1)
    assert hosted.no_leader.detail.startswith("no leader is known: a majority of the voters n1, n2, n3 must")
    hosted.in_doubt = True
    assert hosted.no_leader.detail.endswith("all of its voters run: n1, n2, n3")


@pytest.mark.parametrize(
    ("replication", "needed"),
    [("controller", "a majority of the controllers"), ("classic", "`commitlog ha-status --log a`")],
)
def test_a_refusal_without_a_master_states_where_to_look(replication: str, needed: str) -> None:
    hosted = HostedLog(LogSettings.of_spec("a", LogSpec(replication=replication, replicas=("n1", "n2"))), 1)
    detail = hosted.no_leader.detail
    assert needed in detail
    assert "`commitlog status --log a`" in detail


def test_a_read_that_no_majority_confirms_states_where_to_look_and_which_read_remains() -> None:
    hosted: Any = HostedLog(LogSettings.of_spec("a", LogSpec(replication="raft", replicas=("n1",))), 1)
    hosted.driver = object()
    waits = Waits(1_000)
    waits.end()
    with pytest.raises(ReadIndexUnavailable, match=r"status --log a`.*consistency=committed"):
        asyncio.run(waits.read_index(hosted))


@pytest.mark.parametrize(("deleting", "refusal"), [(False, Repairing), (True, LogDeleting)])
def test_a_wait_ends_with_the_reason_why_the_log_is_not_served(
    deleting: bool, refusal: type[Exception]
) -> None:
    """After a deletion a client must not retry, as it would during a repair."""
    spec = LogSpec(replication="raft", replicas=("n1",))
    hosted, waits = HostedLog(LogSettings.of_spec("a", spec), 1), Waits(1_000)
    hosted.deleting = deleting
    with pytest.raises(refusal):
        asyncio.run(waits.read_index(hosted))
    with pytest.raises(refusal):
        asyncio.run(waits.committed(hosted, 5, 1.0))


def test_a_pause_during_a_stop_lets_the_other_tasks_continue() -> None:
    """A loop that waits for one of them, or for a time limit, would never end."""
    waits = Waits(1_000)
    waits.end()

    async def run() -> list[str]:
        others: list[str] = []
        asyncio.get_running_loop().call_soon(others.append, "ran")
        await waits.pause(60)
        return others.copy()

    assert asyncio.run(run()) == ["ran"]


@pytest.mark.parametrize("next_leader", ["n3", "n4"])
def test_a_second_change_of_leader_during_the_end_of_a_call_does_not_fail_the_timer(
    monkeypatch: pytest.MonkeyPatch, next_leader: str
) -> None:
    """The call gets its TimeoutError after the first one; its cleanup may take longer than a tick."""
    monkeypatch.setattr(module, "REPLACED_GRACE_S", 0.0)
    spec = LogSpec(replication="raft", replicas=("n1", "n2", "n3", "n4"))
    hosted: Any = HostedLog(LogSettings.of_spec("a", spec), 1)
    hosted.driver = SimpleNamespace(role=Role.FOLLOWER, leader_id="n2", term=1)
    hosted.wake_on_change()

    async def call(ending: asyncio.Event) -> None:
        async with hosted.while_led_by("n2"):
            try:
                await asyncio.Event().wait()
            finally:
                ending.set()
                await asyncio.sleep(0)

    async def test() -> None:
        ending = asyncio.Event()
        calling = asyncio.create_task(call(ending))
        await asyncio.sleep(0)
        hosted.driver = SimpleNamespace(role=Role.FOLLOWER, leader_id="n3", term=2)
        hosted.wake_on_change()
        await ending.wait()
        hosted.driver = SimpleNamespace(role=Role.FOLLOWER, leader_id=next_leader, term=3)
        hosted.wake_on_change()
        with pytest.raises(TimeoutError):
            await calling

    asyncio.run(test())


def test_settings_without_effect_in_classic_mode_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Learners of a file acknowledged records as any slave does, without a line about it."""

    async def run() -> None:
        log = {"name": "a", "replication": "classic", "preferred": "n1"}
        async with node_in_process(tmp_path, logs=[log]):
            pass

    asyncio.run(run())
    warnings = [record.getMessage() for record in caplog.records if "log a: " in record.getMessage()]
    assert warnings == ["log a: preferred: without effect in classic mode"]
