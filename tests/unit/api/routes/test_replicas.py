"""Choice of nodes for a number of replicas, when the replicas of a log change."""

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.api.http.leader_proxy import LeaderProxy
from app.api.routes.replicas import brokers_now, change_members, change_members_at_leader, wanted_nodes
from app.controller.metadata import Log, LogSpec, Replica
from app.errors import ChangeInProgress, InvalidRequest, NoLeader, QuorumTimeout
from app.log.commands import ChangeMembers
from app.log.contract import GroupConfig
from app.node.hosted_log import HostedLog
from app.settings.model import LogSettings

ALL = ("n1", "n2", "n3", "n4")


def kept_by(*replicas: str, in_sync: tuple[str, ...] = (), learners: tuple[str, ...] = ()) -> tuple[Any, Any]:
    """A broker that knows the log "a", and another one that n4 keeps; the log "a"."""

    def hosted(name: str, nodes: tuple[str, ...]) -> Any:
        settings = SimpleNamespace(replicas=nodes, learners=learners)
        return SimpleNamespace(name=name, settings=settings, members=nodes)

    spec = LogSpec(replication="controller", replicas=replicas, learners=learners)
    copies = tuple(Replica(place + 1, node, "", node) for place, node in enumerate(replicas))
    members = tuple(copy.id for copy in copies if copy.node in in_sync)
    log = Log(name="a", log_id=1, generation=1, spec=spec, version=1, replicas=copies, sync_state_set=members)
    broker = SimpleNamespace(
        settings=SimpleNamespace(brokers=ALL, controller=SimpleNamespace(nodes=())),
        logs={"a": hosted("a", replicas), "b": hosted("b", ("n4",))},
        metadata=SimpleNamespace(
            log=lambda name: log if name == "a" else None,
            hosted=SimpleNamespace(group=GroupConfig(voters=ALL)),
        ),
    )
    return cast(Any, broker), broker.logs["a"]


def test_the_nodes_that_are_named_are_wanted() -> None:
    assert wanted_nodes(*kept_by("n1", "n2"), ("n2", "n4")) == ("n2", "n4")


def test_those_that_keep_the_log_stay_and_the_others_that_keep_fewest_logs_are_added() -> None:
    assert wanted_nodes(*kept_by("n1", "n2"), 3) == ("n1", "n2", "n3")
    assert wanted_nodes(*kept_by("n1", "n2"), 2) == ("n1", "n2")
    assert wanted_nodes(*kept_by("n4", "n2"), 4) == ("n4", "n2", "n1", "n3")


def test_those_in_sync_stay_before_others_and_learners_leave_first() -> None:
    assert wanted_nodes(*kept_by("n1", "n2", "n3", in_sync=("n3", "n2")), 2) == ("n2", "n3")
    assert wanted_nodes(*kept_by("n1", "n2", "n3", learners=("n1",)), 2) == ("n2", "n3")


@pytest.mark.rule("R-10")
def test_members_of_a_raft_log_stay_although_its_settings_do_not_name_them() -> None:
    """They were added by `members add` and promoted. n3 receives the log, and does not vote yet."""
    broker, _ = kept_by("n4")
    hosted = HostedLog(LogSettings.of_spec("a", LogSpec(replication="raft", replicas=("n4",))), 1)
    hosted._group = GroupConfig(voters=("n4", "n2"), learners=("n3",))
    assert wanted_nodes(broker, hosted, 3) == ("n4", "n2", "n3")
    hosted._group = GroupConfig(voters=("n2", "n4"), learners=("n3",))
    assert wanted_nodes(broker, hosted, 2) == ("n2", "n4")


def test_more_replicas_than_nodes_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="at most 4"):
        wanted_nodes(*kept_by("n1"), 5)


def test_removed_nodes_get_no_new_logs_and_added_ones_do() -> None:
    broker, log = kept_by("n1", "n2")
    broker.metadata.hosted.group = GroupConfig(voters=("n2", "n4", "n5"), learners=("n6",))
    assert brokers_now(broker) == ("n2", "n4", "n5")  # n6 does not vote yet
    assert wanted_nodes(broker, log, 3) == ("n1", "n2", "n5")
    broker.settings = SimpleNamespace(brokers=ALL[2:], controller=SimpleNamespace(nodes=("n1", "n2")))
    broker.metadata.hosted.group = GroupConfig(voters=("n1", "n2"), learners=("n4", "n5"))
    assert brokers_now(broker) == ("n4", "n5")  # beside controllers of their own


@pytest.mark.rule("R-10")
def test_the_second_of_two_changes_of_a_raft_logs_members_is_refused() -> None:
    """Otherwise each would undo the steps of the other until one gives up."""

    async def test() -> None:
        hosted = HostedLog(
            LogSettings.of_spec("a", LogSpec(replication="raft", replicas=("n1", "n2", "n3"))), 1
        )
        commits: list[ChangeMembers] = []
        goes_on = asyncio.Event()

        async def commit(command: ChangeMembers) -> None:
            commits.append(command)
            await goes_on.wait()
            left = tuple(node for node in hosted.voters if node != command.node_id)
            hosted._group = GroupConfig(voters=left)

        async def confirm() -> None:
            return

        clock = SimpleNamespace(monotonic_ms=lambda: 0)
        broker = SimpleNamespace(clock=clock, node=SimpleNamespace(id="n1"))
        here = cast(Any, SimpleNamespace(broker=broker, hosted=hosted, commit=commit, confirm=confirm))
        first = asyncio.create_task(change_members(here, GroupConfig(voters=("n1", "n2"))))
        await asyncio.sleep(0)
        with pytest.raises(ChangeInProgress):
            await change_members(here, GroupConfig(voters=("n1", "n3")))
        goes_on.set()
        await first
        await change_members(here, GroupConfig(voters=("n1",)))
        assert [command.node_id for command in commits] == ["n3", "n2"]

    asyncio.run(test())


@pytest.mark.rule("R-10")
@pytest.mark.parametrize("voters", [(), ("n1", "n3"), ("n1",)])
def test_a_change_of_members_that_loses_its_leader_after_a_part_continues_or_has_an_unknown_outcome(
    voters: tuple[str, ...],
) -> None:
    """No leader is confirmed before the first step, before the second one, or only once before that."""
    hosted = HostedLog(LogSettings.of_spec("a", LogSpec(replication="raft", replicas=("n1", "n2", "n3"))), 1)
    attempts: list[int] = []
    clock = SimpleNamespace(monotonic_ms=lambda: 500 * len(attempts))
    broker = SimpleNamespace(clock=clock, node=SimpleNamespace(id="n1"))

    async def commit(command: ChangeMembers) -> None:
        hosted._group = GroupConfig(voters=tuple(node for node in hosted.voters if node != command.node_id))

    async def confirm() -> None:
        continues = voters == ("n1",) and len(attempts) == 2
        if not voters or (len(hosted.voters) == 2 and not continues):
            raise NoLeader

    async def attempt(_: Any) -> Any:
        attempts.append(1)
        here = SimpleNamespace(broker=broker, hosted=hosted, commit=commit, confirm=confirm)
        await change_members(cast(Any, here), GroupConfig(voters=("n1",)))

    async def leadership_changed(_seconds: float) -> None:
        return

    async def at_leader(_: HostedLog, act: Any) -> Any:
        found = SimpleNamespace(leads=True, driver=0, leadership_changed=leadership_changed)
        search = LeaderProxy(cast(Any, broker))
        return await search.at_leader(cast(Any, found), act, cast(Any, None), deadline_ms=1_000)

    call = cast(Any, SimpleNamespace(at_leader=at_leader))
    refusal = {(): NoLeader, ("n1", "n3"): QuorumTimeout}.get(voters)
    with pytest.raises(refusal) if refusal else nullcontext():
        asyncio.run(change_members_at_leader(call, hosted, attempt))
    assert hosted.voters == (voters or ("n1", "n2", "n3"))
