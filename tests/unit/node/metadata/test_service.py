"""Values that all nodes of a cluster derive alike for the controllers and for the logs of the metadata."""

from dataclasses import replace
from typing import Any

import pytest

from app.node.metadata.service import controller_raft, log_id_in
from app.raft.config import RaftConfig
from app.settings.file import parse
from storage.format.batch import log_id_of


def settings(**election: Any) -> Any:
    node = {"id": "n1", "listen": "127.0.0.1:1", "peer_listen": "127.0.0.1:2", "data": "d"}
    return parse({"cluster": {"id": "c"}, "nodes": [node], "controller": election}, "n1")


def test_each_generation_of_a_name_has_an_id_of_its_own() -> None:
    """The id is in every batch: messages and files of a deleted log are never taken for those of the next."""
    assert log_id_in("c", "a", -1) == log_id_of("c", "a")  # of the configuration file
    assert log_id_in("c", "a", 0) == log_id_of("c", "a@0")
    assert log_id_in("c", "a", 12) == log_id_of("c", "a@12")
    assert len({log_id_in("c", name, generation) for name in "ab" for generation in (-1, 0, 1, 12)}) == 8


@pytest.mark.rule("C-01", "R-04")
@pytest.mark.parametrize(("heartbeat_ms", "tick_ms"), [(40, 10), (250, 200)])
def test_the_controllers_have_heartbeats_within_their_shortest_election(
    heartbeat_ms: int, tick_ms: int
) -> None:
    given = settings(election_timeout_ms=[300, 900])
    raft = replace(RaftConfig(), heartbeat_interval_ms=heartbeat_ms, tick_interval_ms=tick_ms)
    found = controller_raft(replace(given, raft=raft))
    assert found.election_timeout_ms == (300, 900)
    assert found.heartbeat_interval_ms == min(heartbeat_ms, 100)
    assert found.tick_interval_ms == min(tick_ms, found.heartbeat_interval_ms)
