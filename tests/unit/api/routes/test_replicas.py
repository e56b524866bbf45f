"""Choice of nodes for a number of replicas, when the replicas of a log change."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.api.routes.replicas import wanted_nodes
from app.controller.metadata import Log, LogSpec, Replica
from app.errors import InvalidRequest

ALL = ("n1", "n2", "n3", "n4")


def kept_by(*replicas: str, in_sync: tuple[str, ...] = (), learners: tuple[str, ...] = ()) -> tuple[Any, Any]:
    """A broker that knows the log "a", and another one that n4 keeps; the log "a"."""

    def hosted(name: str, nodes: tuple[str, ...]) -> Any:
        return SimpleNamespace(name=name, settings=SimpleNamespace(replicas=nodes, learners=learners))

    spec = LogSpec(replication="controller", replicas=replicas, learners=learners)
    copies = tuple(Replica(place + 1, node, "", node) for place, node in enumerate(replicas))
    members = tuple(copy.id for copy in copies if copy.node in in_sync)
    log = Log(name="a", log_id=1, generation=1, spec=spec, version=1, replicas=copies, sync_state_set=members)
    broker = SimpleNamespace(
        settings=SimpleNamespace(brokers=ALL),
        logs={"a": hosted("a", replicas), "b": hosted("b", ("n4",))},
        metadata=SimpleNamespace(log=lambda name: log if name == "a" else None),
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


def test_more_replicas_than_nodes_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="at most 4"):
        wanted_nodes(*kept_by("n1"), 5)
