"""Repairs of a log of which the peers have trimmed the beginning."""

from collections.abc import Callable

import pytest

from app.node.network.repair_messages import FetchAnswer, FetchRequest, PeerCall
from app.node.repair.marker import RepairMarker
from storage.log.hard_state import HardState, HardStateFile
from tests.unit.node.repair.damaged_log import BATCHES, FOLDER, Peers, Scene, gives_all
from tests.unit.node.repair.test_fetch import history


def trimmed_before(**begins: int) -> Callable[[str, PeerCall], PeerCall]:
    """Healthy peers whose logs begin at these indexes."""

    def answers(peer: str, message: PeerCall) -> PeerCall:
        assert isinstance(message, FetchRequest)
        if message.first_index < begins[peer]:
            return FetchAnswer(message.id, begins[peer], 79)
        held = gives_all(peer, message)
        assert isinstance(held, FetchAnswer)
        return FetchAnswer(message.id, begins[peer], 79, False, held.batches)

    return answers


@pytest.mark.rule("R-07")
@pytest.mark.parametrize("positions", [(3,), (3, 35), (35, 3)])
def test_records_that_all_peers_have_trimmed_are_trimmed_here_and_the_rest_is_kept(
    positions: tuple[int, ...],
) -> None:
    scene = Scene()
    causes = [scene.damage(position) for position in positions]
    repair = scene.run(Peers(trimmed_before(n2=60, n3=62)), causes[0])
    assert not repair.result.set_aside
    assert scene.host.log is not None
    assert (scene.host.log.begin_index, scene.host.log.end_index) == (60, 79)
    assert [scene.host.log.batch_at(index) for index in range(60, 80, 2)] == BATCHES[30:]
    assert scene.host.sound  # every replica may remove what is missing
    assert repair.result.as_event().data["begin_index"] == 60
    assert not any(int(name[:20]) + 4_000 < BATCHES[30].offset for name in scene.segments)


@pytest.mark.rule("A-09", "H-06")
def test_a_master_gives_up_nothing_because_its_slaves_begin_later() -> None:
    """They began with its last segment: no trim has removed what they lack, and no other copy has it."""
    scene = Scene()
    scene.votes = False
    repair = scene.run(Peers(trimmed_before(n2=60, n3=62)), scene.damage(3))
    assert repair.result.set_aside
    assert any(int(name[:20]) == 0 for name in scene.files.list(f"{FOLDER}/aside") if name.endswith(".log"))


def test_a_log_begins_within_a_damage_where_the_peers_begin() -> None:
    scene = Scene()
    causes = [scene.damage(position) for position in range(25, 35)]
    repair = scene.run(Peers(trimmed_before(n2=60, n3=62)), causes[0])
    assert scene.host.log is not None
    assert (scene.host.log.begin_index, scene.host.log.end_index) == (60, 79)
    assert [scene.host.log.batch_at(index) for index in range(60, 80, 2)] == BATCHES[30:]
    assert repair.result.stretches == [{"first_index": 60, "last_index": 69}]
    assert scene.host.sound


@pytest.mark.parametrize("other", [False, True])
def test_a_log_of_which_all_peers_have_trimmed_everything_is_set_aside(other: bool) -> None:
    """Nothing of it is left, or it holds other records where the peers begin."""
    scene = Scene()

    def answers(_peer: str, message: PeerCall) -> PeerCall:
        assert isinstance(message, FetchRequest)
        begin = 60 if other else 80
        held = history(41, salt="other" if other else "")[begin // 2 :]
        batches = tuple(held[:1]) if message.first_index == begin else ()
        return FetchAnswer(message.id, begin, 81, False, batches)

    repair = scene.run(Peers(answers), scene.damage(3))
    assert repair.result.set_aside
    assert scene.host.log is not None
    assert scene.host.log.end_index == -1
    assert scene.host.sound is False
    assert RepairMarker(scene.files, "data", "log").lacks_records
    assert any(name.endswith(".log") for name in scene.files.list(f"{FOLDER}/aside"))
    assert HardStateFile(scene.files, f"{FOLDER}/vote").load() == HardState(4, "n2")  # the promise stays


def test_peers_that_trim_while_they_are_asked_are_asked_for_their_new_begin() -> None:
    scene, asked = Scene(), 0

    def answers(peer: str, message: PeerCall) -> PeerCall:
        nonlocal asked
        asked += 1
        return trimmed_before(n2=60 + asked // 3 * 2 if asked < 24 else 76, n3=76)(peer, message)

    scene.run(Peers(answers), scene.damage(3))
    assert scene.host.log is not None
    assert scene.host.log.end_index == 79
    assert 60 <= scene.host.log.begin_index <= 76
