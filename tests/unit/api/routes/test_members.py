"""Which logs a change of the members concerns when the call names none (R-10)."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.responses import Response

from app.api.routes.members import (
    MemberIn,
    _at_leader,
    _commit,
    _learn,
    checked_address,
    logs_of_the_change,
    member_objects,
    taken_addresses,
)
from app.errors import (
    ChangeInProgress,
    CommitlogError,
    InvalidRequest,
    LogDeleting,
    NoLeader,
    QuorumTimeout,
    Repairing,
)
from app.log.commands import ChangeMembers
from app.log.contract import ChangeKind, GroupConfig
from app.log.state import Address
from app.settings.model import Replication

ALL = ("n1", "n2", "n3")


def broker_of(logs: dict[str, Replication], *, kept: bool = True, controllers: tuple[str, ...] = ()) -> Any:
    """A node that knows these logs, each with the members ALL; kept: it has replicas of them."""

    def hosted(name: str, replication: Replication) -> Any:
        settings = SimpleNamespace(replication=replication, replicas=ALL)
        driver = SimpleNamespace(addresses={})
        return SimpleNamespace(name=name, settings=settings, members=ALL, driver=driver if kept else None)

    return cast(
        Any,
        SimpleNamespace(
            logs={name: hosted(name, replication) for name, replication in logs.items()},
            metadata=SimpleNamespace(hosted=hosted("__controller", Replication.RAFT), log=lambda _name: None),
            settings=SimpleNamespace(controller=SimpleNamespace(nodes=controllers)),
        ),
    )


def names(broker: Any, kind: ChangeKind, node_id: str) -> list[str]:
    return [hosted.name for hosted in logs_of_the_change(broker, ChangeMembers(kind, node_id))]


@pytest.mark.rule("R-10")
def test_the_log_of_the_metadata_changes_last_and_only_where_every_node_votes_in_it() -> None:
    logs = {"a": Replication.RAFT, "b": Replication.RAFT}
    for kind in ChangeKind:
        assert names(broker_of(logs), kind, "n3") == ["a", "b", "__controller"]
        assert names(broker_of(logs, controllers=("n1",)), kind, "n3") == ["a", "b"]
    assert names(broker_of(logs, kept=False), ChangeKind.REMOVE, "n9") == ["a", "b"]  # their leaders know
    assert names(broker_of(logs), ChangeKind.REMOVE, "n9") == []


@pytest.mark.rule("R-10")
def test_a_node_with_replicas_that_need_the_metadata_stays_a_member_of_their_log() -> None:
    mixed = {"a": Replication.RAFT, "b": Replication.CONTROLLER}
    assert names(broker_of(mixed), ChangeKind.REMOVE, "n3") == ["a"]
    assert names(broker_of(mixed), ChangeKind.ADD, "n4") == ["a", "__controller"]
    with pytest.raises(InvalidRequest) as refused:
        names(broker_of({"b": Replication.CONTROLLER}), ChangeKind.REMOVE, "n3")
    assert "log=__controller" in str(refused.value.problem("/", "r"))


@pytest.mark.parametrize("id", ["n 4", "n/4", "n4\n", "-n4", "\u00e9", "n" * 33])
def test_a_member_whose_id_no_call_could_name_is_refused(id: str) -> None:
    """It could not be promoted or removed: its id has no place in a path."""
    with pytest.raises(InvalidRequest) as refused:
        checked_address(MemberIn(id, "http://h:1", "h:2"))
    assert refused.value.errors[0]["pointer"] == "/id"


@pytest.mark.parametrize(
    "url",
    [
        "http://h:1\r\nset-cookie: a=b",
        "http://h:1\n",
        "http://h\u2603",
        "http://",
        "http://h:port",
        "http://h 1",
        "http://user@h",
        "http://h:1?a=b",
        "http://h:1#a",
        "ftp://h",
        "http://" + "h" * 300,
    ],
)
def test_a_url_that_cannot_be_a_header_of_answers_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        checked_address(MemberIn("n4", url, "h:2"))
    assert refused.value.errors[0]["pointer"] == "/url"


def test_a_base_url_has_a_host_a_port_and_perhaps_a_path() -> None:
    for url in ("http://h", "https://h-1.example_a.org:8104", "http://[::1]:1", "http://10.0.0.1:1/log/a"):
        assert checked_address(MemberIn("n4", url + "/", "h:2")) == Address(url, "h:2")


def test_addresses_of_a_node_that_is_not_a_member_yet_may_differ_from_the_configuration() -> None:
    broker = broker_of({"a": Replication.RAFT})
    broker.nodes = [
        SimpleNamespace(id=f"n{k}", url=f"http://h{k}:8101", peer_address=f"h{k}:9101") for k in (1, 2, 3, 4)
    ]
    new = Address("http://new:8101", "new:9101")
    assert sorted(taken_addresses(broker, "n3", new)) == ["n1", "n2", "n3", "n4"]
    assert sorted(taken_addresses(broker, "n4", new)) == ["n1", "n2", "n3"]
    assert taken_addresses(broker, "n4", new)["n2"] == Address("http://h2:8101", "h2:9101")
    broker.logs["a"].driver.addresses = {"n5": Address("http://h5:8101", "h5:9101")}
    assert sorted(taken_addresses(broker, "n4", new)) == ["n1", "n2", "n3", "n5"]


@pytest.mark.rule("R-10")
def test_a_node_that_joins_the_logs_one_after_another_has_the_address_of_the_first_one() -> None:
    """It was removed and has moved; this node still calls it at its former address."""
    broker = broker_of({"a": Replication.RAFT, "b": Replication.RAFT})
    broker.nodes = [SimpleNamespace(id="n4", url="http://old:8101", peer_address="old:9101")]
    old, new = Address("http://old:8101", "old:9101"), Address("http://new:8101", "new:9101")
    broker.logs["a"].members = (*ALL, "n4")
    broker.logs["a"].driver.addresses = {"n4": new}
    assert taken_addresses(broker, "n4", new)["n4"] == new
    assert taken_addresses(broker, "n4", Address("http://third:8101", "third:9101"))["n4"] == old


@pytest.mark.rule("R-10")
def test_a_node_is_listed_as_soon_as_a_log_names_it() -> None:
    """The answer to `members add` shows the new node, which this one has not connected to yet."""
    broker = broker_of({"a": Replication.RAFT})
    broker.node = SimpleNamespace(id="n1")
    broker.nodes = [SimpleNamespace(id="n1", url="http://h1:8101", peer_address="h1:9101")]
    broker.transport = SimpleNamespace(peer_version=lambda _peer_id: None)
    broker.metadata.is_silent = lambda _node_id: False
    broker.logs["a"].voters = ("n1",)
    broker.logs["a"].driver = SimpleNamespace(addresses={"n4": Address("http://h4:8101", "h4:9101")})
    [first, added] = member_objects(broker)
    assert (first["id"], first["voter"], first["alive"]) == ("n1", True, True)
    assert (added["id"], added["url"], added["peer_address"]) == ("n4", "http://h4:8101", "h4:9101")
    assert (added["voter"], added["alive"]) == (False, False)


@pytest.mark.parametrize("interruption", [Repairing(), LogDeleting("a")])
def test_a_change_that_is_committed_succeeds_while_this_node_gives_its_replica_up(
    interruption: CommitlogError,
) -> None:
    """The leader has answered; this node only waits to have what it answered."""

    async def committed(*_: object) -> bool:
        raise interruption

    broker = cast(Any, SimpleNamespace(waits=SimpleNamespace(committed=committed)))
    hosted = cast(Any, SimpleNamespace(serving=object()))
    asyncio.run(_learn(broker, hosted, Response(headers={"Commitlog-Committed-Index": "7"})))


class TwoVoters:
    """A log of two voters that is led here (api/http/log_call.Served). late: so many calls find the change
    before them in progress. cut_off: no other node answers."""

    def __init__(self, late: int = 0, *, cut_off: bool = False) -> None:
        self.late = late
        self.cut_off = cut_off
        self.calls = self.now_ms = 0
        self.hosted = SimpleNamespace(group=GroupConfig(voters=("n1", "n2")))
        self.broker = SimpleNamespace(
            clock=SimpleNamespace(monotonic_ms=lambda: self.now_ms),
            settings=SimpleNamespace(http=SimpleNamespace(leader_wait_ms=1_000)),
            waits=SimpleNamespace(pause=self.pause),
        )

    async def pause(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1_000)

    async def confirm(self) -> None:
        if self.cut_off:
            raise NoLeader

    async def commit(self, _change: ChangeMembers) -> None:
        self.calls += 1
        if self.calls > 1 and self.late:
            self.late -= 1
            raise ChangeInProgress
        is_voter = "n2" in self.hosted.group.voters
        self.hosted.group = GroupConfig(voters=("n1",), learners=("n2",) if is_voter else ())


@pytest.mark.rule("R-10")
def test_one_of_two_voters_is_removed_in_two_steps() -> None:
    log = TwoVoters(late=2)
    asyncio.run(_commit(cast(Any, log), ChangeMembers(ChangeKind.REMOVE, "n2")))
    assert (log.hosted.group, log.calls) == (GroupConfig(voters=("n1",)), 4)
    log = TwoVoters(late=100)
    with pytest.raises(ChangeInProgress):
        asyncio.run(_commit(cast(Any, log), ChangeMembers(ChangeKind.REMOVE, "n2")))
    assert log.now_ms == 1_000


@pytest.mark.rule("R-10")
def test_a_leader_that_is_cut_off_writes_no_change_of_the_members() -> None:
    """It would hold the record alone. If it leaves, and the disk of the other one is replaced, none leads."""
    log = TwoVoters(cut_off=True)
    with pytest.raises(NoLeader):
        asyncio.run(_commit(cast(Any, log), ChangeMembers(ChangeKind.REMOVE, "n1")))
    assert log.calls == 0


@pytest.mark.rule("R-10")
@pytest.mark.parametrize("begun", [True, False])
def test_a_removal_that_loses_its_leader_between_the_two_steps_has_an_unknown_outcome(begun: bool) -> None:
    hosted = SimpleNamespace(voters=("n1", "n2"))

    async def at_leader(*_args: object) -> Response:
        hosted.voters = ("n2",) if begun else hosted.voters
        raise NoLeader

    call, change = cast(Any, SimpleNamespace(at_leader=at_leader)), ChangeMembers(ChangeKind.REMOVE, "n1")
    with pytest.raises(QuorumTimeout if begun else NoLeader):
        asyncio.run(_at_leader(call, cast(Any, hosted), change, cast(Any, None)))
