"""Commands at a driver: fences, cursors, trims."""

from pathlib import Path

import pytest

from app.errors import LeaderPendingFull
from app.log.commands import ABSENT, CommandResult, DropCursor, MoveCursor, SetFence, Trim
from app.log.driver_interfaces import DriverConfig
from app.node.replica.append_queue import COMMANDS_MAX
from storage.errors import StorageFull
from storage.log.checkpoint import SnapshotFile
from storage.log.commitlog import CommitlogConfig
from tests.unit.node.replica.driver_support import Node, code, result

SMALL = CommitlogConfig(segment_max_bytes=8 * 1024)


def done(answer: object) -> CommandResult:
    assert isinstance(answer, CommandResult), answer
    return answer


def test_a_command_is_a_control_record_of_its_own(node: Node) -> None:
    fence = done(node.command(SetFence("w-a")))
    assert (fence.index, fence.term, fence.changed) == (1, 1, True)
    assert node.driver.log.batch_at(1).is_control
    again = done(node.command(SetFence("w-a")))
    assert (again.index, again.changed) == (1, False)
    assert code(node.command(SetFence("w-b", match_token=None))) == "fenced"
    assert done(node.command(SetFence(None, match_token="w-a"))).changed


@pytest.mark.rule("D-29")
def test_commands_beyond_the_limit_are_refused_at_once(node: Node) -> None:
    answers: list[object] = []
    for number in range(COMMANDS_MAX + 1):
        node.driver.command(MoveCursor("etl", number, fence=False), answers.append)
    assert [each.code for each in answers if isinstance(each, LeaderPendingFull)] == ["leader-pending-full"]
    assert len(answers) == 1
    node.seams.run()
    assert [done(each).changed for each in answers[1:]] == [True] * COMMANDS_MAX
    assert node.driver.state.cursors["etl"].position == COMMANDS_MAX - 1


def test_fences_and_cursors_survive_a_restart(node: Node) -> None:
    done(node.command(SetFence("w-a")))
    made = done(node.command(MoveCursor("etl", 5, fence=True, if_match=ABSENT)))
    done(node.command(MoveCursor("gone", 1, fence=False)))
    done(node.command(DropCursor("gone")))
    node.restart()
    assert node.driver.state.fencing_token == "w-a"
    assert list(node.driver.state.cursors) == ["etl"]
    assert node.driver.state.cursors["etl"].revision == made.index


def test_a_trim_stops_at_a_readers_fence(node: Node) -> None:
    for _ in range(10):
        node.append()
    done(node.command(MoveCursor("etl", 4, fence=True)))
    assert code(node.command(Trim(6))) == "not-materialized"
    assert code(node.command(Trim(99))) == "invalid-request"
    done(node.command(Trim(4)))
    node.tick(20)
    node.tick(20)
    assert node.driver.log.begin_index == 4
    done(node.command(Trim(6, force=True)))
    node.tick(20)
    node.tick(20)
    assert node.driver.log.begin_index == 6
    assert not done(node.command(Trim(5))).changed


def test_nothing_is_trimmed_before_the_state_is_safe(tmp_path: Path) -> None:
    """Otherwise a power cut leaves a log that no node can lead: its keys are nowhere."""
    node = Node(tmp_path)
    key = result(node.append(idempotency_key="k"))
    for _ in range(10):
        node.append()
    done(node.command(Trim(8)))
    assert node.driver.log.begin_index == 0
    node.tick(20)
    node.tick(20)
    assert node.driver.log.begin_index == 8
    node.restart()
    again = result(node.append(idempotency_key="k"))
    assert (again.first_index, again.replayed) == (key.first_index, True)


def test_a_repeat_of_what_is_trimmed_with_its_term_gets_the_first_answer(tmp_path: Path) -> None:
    """The leader of that term is unknown: any answer counts as its."""
    node = Node(tmp_path)
    first = result(node.append(idempotency_key="k"))
    node.restart()
    last = [result(node.append()) for _ in range(3)][-1]
    done(node.command(Trim(last.last_index)))
    for _ in range(2):
        node.tick(20)
    assert node.driver.log.begin_index == last.last_index
    assert node.driver.log.epochs[0].term > first.term
    again = result(node.append(idempotency_key="k"))
    assert (again.first_index, again.term, again.leader, again.replayed) == (
        first.first_index,
        first.term,
        node.driver.node_id,
        True,
    )


def test_a_snapshot_of_what_may_still_be_taken_back_makes_no_trim_safe(tmp_path: Path) -> None:
    """Once the batch that it rests on is trimmed, a restart only believes what was committed at its time."""
    node = Node(tmp_path, config=DriverConfig(checkpoint_interval_ms=20, snapshot_interval_ms=60))
    node.tick(20)
    node.append()
    asked = node.ask(idempotency_key="k")
    node.seams.turn()  # written, neither durable nor committed
    for _ in range(3):
        node.seams.now += 20
        node.driver.tick()  # the snapshot is taken
    node.seams.run()
    first = result(*asked)
    node.driver._state.checkpointer._snapshot_ms = 1 << 60  # and no other one by itself
    for _ in range(2):
        node.tick(20)
    assert node.driver._state.checkpointer._saved.state_index == first.last_index
    done(node.command(Trim(first.last_index + 1)))
    for _ in range(4):
        node.tick(20)
    assert node.driver.log.begin_index == first.last_index + 1
    node.restart()
    again = result(node.append(idempotency_key="k"))
    assert (again.first_index, again.replayed) == (first.first_index, True)


def test_a_trim_on_a_full_disk_needs_no_new_snapshot_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot on the disk covers it, and the space for another one comes from the trim."""
    node = Node(tmp_path)
    first = result(node.append(idempotency_key="k"))
    for _ in range(5):
        node.append()
    node.driver.stop()
    node.seams.run()
    node.restart()

    def full(file: SnapshotFile, *_pieces: bytes) -> None:
        raise StorageFull(file.path, "write", "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(SnapshotFile, "save", full)
        done(node.command(Trim(5)))
        for _ in range(3):
            node.tick(20)
        assert node.driver.log.begin_index == 5
        result(node.append())
        done(node.command(Trim(9)))  # more than the snapshot covers
        for _ in range(3):
            node.tick(20)
        assert node.driver.log.begin_index == 7
    for _ in range(3):
        node.tick(20)
    assert node.driver.log.begin_index == 9
    node.restart()
    again = result(node.append(idempotency_key="k"))
    assert (again.first_index, again.replayed) == (first.first_index, True)
