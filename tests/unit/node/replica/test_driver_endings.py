"""Every waiting caller is answered once, however a driver ends: damaged log, stopping node, or both."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.errors import CommitlogError, ReadIndexUnavailable
from app.ha.frames import ClassicReport, History
from app.ha.messages import INCOMING, Closed, Opened
from app.log.contract import Acks, Durability, LogOptions, Role
from app.log.driver_interfaces import DriverConfig
from app.log.snapshot import Capture
from app.log.state import DAY_MS
from app.node.state.checkpoints import load_snapshot
from app.raft.messages import Heartbeat, PushAnswer, PushCode, PushRequest, StateRequest
from storage.errors import CorruptLog
from storage.files import OsFileSystem
from storage.log.checkpoint import SnapshotFile
from storage.log.commitlog import Commitlog
from tests.unit.node.replica.driver_support import Limits, Node, classic_mode, code, result
from tests.unit.node.replica.test_driver import keep_lead, leading_node

SLAVE = f"{INCOMING}1"


@pytest.mark.rule("D-23")
def test_answers_that_wait_for_the_disk_are_given_when_the_log_is_given_up(tmp_path: Path) -> None:
    node = leading_node(tmp_path)
    answers = node.ask()
    reads: list[int | CommitlogError] = []
    node.driver.read_index(reads.append)
    node.seams.run()
    node.driver.deliver("n2", Heartbeat(9, "n2", -1, 1))
    node.seams.turn()  # the newer term is on its way to the disk, what it ends behind it
    node.driver.abandon()
    node.seams.run()
    assert [code(answer) for answer in answers] == ["term-changed"]
    assert len(reads) == 1
    assert isinstance(reads[0], CommitlogError)


@pytest.mark.rule("R-08")
@pytest.mark.parametrize("ends", ["stop", "abandon"])
def test_reads_are_refused_when_the_driver_ends_and_afterwards(tmp_path: Path, ends: str) -> None:
    node = Node(tmp_path)
    reads: list[int | CommitlogError] = []
    node.driver.read_index(reads.append)  # waits for a turn
    getattr(node.driver, ends)()
    assert len(reads) == 1
    node.driver.read_index(reads.append)
    assert len(reads) == 2
    node.seams.run()
    assert [type(each) for each in reads] == [ReadIndexUnavailable] * 2


@pytest.mark.rule("R-11")
def test_a_log_that_was_given_up_is_not_synced_and_does_nothing_more(tmp_path: Path) -> None:
    """A repair changes its files."""
    node = leading_node(tmp_path)
    node.ask()
    node.seams.turn()  # the sync of the append is requested
    log = node.driver.log
    durable_index = log.durable_index
    assert durable_index < log.end_index
    node.driver.abandon()
    sent = len(node.seams.sent)
    node.driver.abandon()
    node.driver.deliver("n2", Heartbeat(9, "n2", -1, 1))
    for _ in range(5):
        node.tick(1_000)
    assert (log.durable_index, len(node.seams.sent), node.driver.term) == (durable_index, sent, 1)
    assert node.seams.failures == []


def test_a_closed_log_lets_go_of_its_batches_and_keys(tmp_path: Path) -> None:
    """The parts of a driver refer to one another. In a quiet node the collector of cycles may take days, and
    each deleted log would keep its cache of 8 MiB and more, and 80 bytes for each key."""
    node = Node(tmp_path)
    result(node.append(b"v" * 1_000, idempotency_key="k"))
    driver, log = node.driver, node.driver.log
    assert (driver.state.key_count, log._tail.reaches(log.end_index)) == (1, True)
    driver.abandon()
    node.seams.run()
    driver.close()
    assert (driver.state.key_count, log._tail.reaches(log.end_index)) == (0, False)


def test_a_closed_log_lets_go_of_the_states_that_it_receives_and_sends(tmp_path: Path) -> None:
    """Each may be as large as the state of the log itself."""
    node = Node(tmp_path, config=DriverConfig(state_chunk_bytes=1))
    result(node.append(b"v", idempotency_key="k"))
    transfer = node.driver._state.transfer
    transfer.serve("n2", StateRequest(7, 0))
    transfer._begin()
    assert transfer._served
    assert transfer._restoring is not None
    node.driver.abandon()
    node.seams.run()
    node.driver.close()
    assert (transfer._served, transfer._restoring) == ({}, None)


@pytest.mark.rule("R-09")
def test_a_leader_that_stops_leads_no_longer(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.driver.role is Role.LEADER
    node.driver.stop()
    node.seams.run()
    assert node.driver.role is Role.FOLLOWER


def test_a_stop_ends_also_when_the_log_is_given_up_meanwhile_or_was_before(tmp_path: Path) -> None:
    node = leading_node(tmp_path)
    node.driver.deliver("n2", Heartbeat(9, "n2", -1, 1))
    node.seams.turn()
    stopped: list[str] = []
    node.driver.stop(lambda: stopped.append("first"))
    node.driver.abandon()
    node.seams.run()
    assert stopped == ["first"]
    node.driver.stop(lambda: stopped.append("second"))
    node.seams.run()
    assert stopped == ["first", "second"]


def test_each_stop_of_a_log_is_answered_once(tmp_path: Path) -> None:
    node = Node(tmp_path)
    stopped: list[str] = []
    node.driver.stop(lambda: stopped.append("first"))
    assert node.driver.has_ended
    node.driver.stop(lambda: stopped.append("second"))
    node.seams.run()
    assert stopped == ["second", "first"]  # the first one when all is saved


def test_the_disk_thread_copies_the_state_that_a_stop_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the loop, a large state would delay the hand-over of all other logs."""
    node = Node(tmp_path)
    result(node.append(idempotency_key="k"))
    at_disk: list[None] = []  # not empty while a disk thread would run
    copied: list[bool] = []
    take, submit = Capture.take, node.seams.submit

    def noted(capture: Capture, max_bytes: int) -> list[bytes]:
        copied.append(bool(at_disk))
        return take(capture, max_bytes)

    def submit_noted(work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]) -> None:
        def do() -> None:
            at_disk.append(None)
            work()
            at_disk.clear()

        submit(do, then)

    monkeypatch.setattr(Capture, "take", noted)
    monkeypatch.setattr(node.seams, "submit", submit_noted)
    node.driver.stop()
    node.seams.run()
    assert copied
    assert all(copied)
    file = SnapshotFile(OsFileSystem(), f"{tmp_path}/logs/default/state")
    found = load_snapshot(file, idempotency_ms=DAY_MS)
    assert found is not None
    assert found[0].find_key("k") is not None


def test_an_append_in_hand_is_answered_when_the_one_before_it_meets_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, config=DriverConfig(coalesce_max_bytes=100))
    found: list[CorruptLog] = []
    monkeypatch.setattr(node.driver, "_damaged", found.append)

    def append(_log: Commitlog, _batches: object) -> None:
        raise CorruptLog("logs/default", 0, "noise")

    monkeypatch.setattr(Commitlog, "append", append)
    answers = [node.ask(b"x" * 90) for _ in range(3)]
    node.seams.run()
    assert len(found) == 1
    assert [code(answer) for each in answers for answer in each] == ["term-changed", "no-leader", "no-leader"]


@pytest.mark.rule("R-09", "D-26")
def test_requests_that_wait_for_the_next_leader_are_refused_at_their_deadline_as_not_applied(
    tmp_path: Path,
) -> None:
    node = leading_node(tmp_path)
    before = node.driver.log.end_index
    [push] = [push for target, push in node.seams.sent if target == "n2" and isinstance(push, PushRequest)]
    same = PushAnswer(push.term, push.type, PushCode.SUCCESS, push.session, 9, push.index, 0, push.index)
    node.driver.deliver("n2", same)
    node.seams.run()
    assert node.driver.transfer("n2") == "n2"  # it holds everything, and does not take over
    short, long = node.ask(timeout_ms=100), node.ask(timeout_ms=5_000)
    for _ in range(10):
        keep_lead(node)
        node.tick(20)
    assert node.driver.is_transferring
    assert [code(answer) for answer in short] == ["leader-transferring"]
    assert long == []
    for _ in range(60):
        keep_lead(node)
        node.tick(20)
    assert not node.driver.is_transferring
    assert len(short) == 1
    assert node.driver.log.end_index == before + 1  # the other one is stored


@pytest.mark.rule("D-29")
def test_requests_that_were_refused_at_their_deadline_leave_room_for_others(tmp_path: Path) -> None:
    """Otherwise each of them would count as waiting for as long as this node leads."""
    node = leading_node(tmp_path, limits=Limits(max_pending_requests=3, max_pending_bytes=30))
    [push] = [push for target, push in node.seams.sent if target == "n2" and isinstance(push, PushRequest)]
    same = PushAnswer(push.term, push.type, PushCode.SUCCESS, push.session, 9, push.index, 0, push.index)
    node.driver.deliver("n2", same)
    node.seams.run()
    assert node.driver.transfer("n2") == "n2"  # it holds everything, and does not take over
    late = [node.ask(b"x" * 10, timeout_ms=20) for _ in range(3)]
    node.tick(20)
    assert [code(answer) for each in late for answer in each] == ["leader-transferring"] * 3
    before = node.driver.log.end_index
    waiting = [node.ask(b"x" * 10, timeout_ms=5_000) for _ in range(3)]
    assert waiting == [[], [], []]
    for _ in range(70):
        keep_lead(node)
        node.tick(20)
    assert not node.driver.is_transferring
    assert node.driver.log.end_index == before + 3


@pytest.mark.rule("R-11", "R-01")
def test_a_repair_after_a_change_to_fsync_may_not_lose_what_was_acknowledged_before(tmp_path: Path) -> None:
    """Until the disk has it, damage there would be taken for a torn tail."""
    node = Node(tmp_path, durability=Durability.REPLICATED)
    answers = node.ask(b"acknowledged")
    node.seams.turn()
    assert result(answers[0]).durability is Durability.REPLICATED
    acknowledged = node.driver.log.end_index
    node.driver.change_options(LogOptions(durability=Durability.FSYNC))
    node.seams.turn()
    node.ask(b"not acknowledged")
    node.seams.turn()
    assert node.driver.log.durable_index < acknowledged < node.driver.log.end_index
    assert node.driver.held_index == acknowledged
    node.seams.run()
    assert node.driver.held_index == node.driver.log.end_index == node.driver.log.durable_index


# --- a classic master ----------------------------------------------------------------------------------


def report(node: Node) -> None:
    """n2 acknowledges everything."""
    node.driver.deliver(SLAVE, ClassicReport(node.driver.log.end_offset))
    node.seams.run()


@pytest.fixture
def master(tmp_path: Path) -> Node:
    """n1, the master of n2, which holds everything."""
    node = Node(tmp_path, mode=classic_mode("n1", begins=True))
    node.tick(10_000)
    node.driver.deliver(SLAVE, Opened(2, History(0, 0, 0, bytes(8)), "n2"))
    node.driver.deliver(SLAVE, ClassicReport(0))
    node.seams.run()
    report(node)
    assert [peer.in_sync for peer in node.driver.status().core.peers] == [True]
    return node


def stop(node: Node) -> list[bool]:
    stopped: list[bool] = []
    node.driver.stop(lambda: stopped.append(True))
    node.seams.run()
    return stopped


@pytest.mark.rule("H-07")
def test_a_master_whose_slave_holds_everything_stops_at_once(master: Node) -> None:
    assert stop(master) == [True]


@pytest.mark.rule("H-07")
def test_an_append_that_waits_for_a_slave_is_acknowledged_though_its_master_stops(master: Node) -> None:
    waiting = master.ask()
    master.seams.run()
    queued = master.ask()
    stopped = stop(master)
    late = master.ask(acks=Acks.LEADER)
    master.seams.run()
    assert (waiting, stopped) == ([], [])
    end_index = master.driver.log.end_index
    report(master)
    assert result(waiting[0]).last_index == end_index
    assert [code(each[0]) for each in (queued, late)] == ["no-leader"] * 2
    assert (stopped, master.driver.log.end_index) == ([True], end_index)


@pytest.mark.rule("H-07")
@pytest.mark.parametrize("event", ["late", "gone"])
def test_a_stop_does_not_wait_long_for_a_slave_without_progress(master: Node, event: str) -> None:
    waiting = master.ask()
    master.seams.run()
    stopped = stop(master)
    master.tick(900)
    assert stopped == []
    if event == "late":
        master.tick(100)
    else:
        master.driver.deliver(SLAVE, Closed("gone"))
        master.seams.run()
    assert stopped == [True]
    assert len(waiting) == 1
