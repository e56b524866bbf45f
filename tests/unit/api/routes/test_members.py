"""Which logs a change of the members concerns when the call names none (R-10)."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.api.routes.members import logs_of_the_change
from app.errors import InvalidRequest
from app.log.commands import ChangeMembers
from app.log.contract import ChangeKind
from app.settings.model import Replication

ALL = ("n1", "n2", "n3")


def broker_of(logs: dict[str, Replication], *, kept: bool = True, controllers: tuple[str, ...] = ()) -> Any:
    """A node that knows these logs, each with the members ALL; kept: it has replicas of them."""

    def hosted(name: str, replication: Replication) -> Any:
        settings = SimpleNamespace(replication=replication, replicas=ALL)
        return SimpleNamespace(name=name, settings=settings, members=ALL, driver=kept or None)

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
