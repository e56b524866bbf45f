"""The driver of a log: its disk, checkpoints and restarts, who waits for commits and reads."""

from pathlib import Path
from typing import Any

import pytest

from app.errors import CommitlogError, ReadIndexUnavailable
from app.log.commands import SetFence
from app.log.contract import AppendRequest, Durability, Role
from app.log.driver_interfaces import DriverConfig
from app.log.producers import Producer
from app.node.replica import read_gate as read_gate
from app.node.replica.driver import LogDriver
from app.raft.messages import (
    Heartbeat,
    PushType,
    ReadIndexAnswer,
    VoteAnswer,
    VoteRequest,
)
from storage import errors as storage_errors
from storage.format.records import RecordColumns
from storage.log.commitlog import Commitlog
from tests.unit.node.replica.driver_support import (
    Node,
    code,
    follower_of_n2,
    keep_lead,
    leading_node,
    push_to,
    result,
)


class FullFiles:
    """Replaces Commitlog.append while the disk is full."""

    def __init__(self, driver: LogDriver) -> None:
        self.driver = driver
        self.append = driver.log.append

    def refuse(self, _batches: object) -> None:
        raise storage_errors.StorageFull("log", "pwrite", "no space left")


def test_a_full_disk_is_a_refusal_and_nothing_of_the_append_stays(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = FullFiles(node.driver)
    monkeypatch.setattr(node.driver.log, "append", full.refuse)
    answers = [
        node.ask(idempotency_key="k"),
        node.ask(producer=Producer("p", 0, 3)),
        node.ask(idempotency_key="k"),
    ]
    node.seams.run()
    assert [code(each[0]) for each in answers] == ["storage-full"] * 3
    assert "the disk of node n1: no space" in answers[0][0].detail
    assert node.driver.log.end_index == 0
    monkeypatch.undo()
    again = result(node.append(idempotency_key="k"))
    assert (again.first_index, again.replayed) == (1, False)
    assert result(node.append(producer=Producer("p", 0, 5))).first_index == 2


@pytest.mark.rule("R-11")
def test_a_failed_write_of_term_or_vote_stops_the_node(tmp_path: Path) -> None:
    node = Node(tmp_path, "n1", "n2", "n3")
    node.seams.disk_error = storage_errors.SyncFailed("vote", "fdatasync", "I/O error")
    node.driver.deliver("n2", VoteRequest(5, 10, 4))
    node.seams.run()
    assert [type(error) for _, error in node.seams.failures] == [storage_errors.SyncFailed]
    assert node.seams.sent == []  # no vote left the node
    node.driver.deliver("n2", Heartbeat(6, "n2", -1, 1))
    node.seams.run()
    assert len(node.seams.failures) == 1
    assert node.seams.sent == []


@pytest.mark.rule("R-01")
def test_a_vote_leaves_only_when_it_is_on_disk_and_survives_a_restart(tmp_path: Path) -> None:
    voters = ("n1", "n2", "n3")
    node = Node(tmp_path, *voters)
    node.driver.deliver("n2", VoteRequest(5, 10, 4))
    node.seams.turn()
    assert node.seams.sent == []
    node.seams.run()
    assert node.seams.sent == [("n2", VoteAnswer(5, True, False, voters=voters))]
    node.restart()
    assert node.driver.term == 5
    node.driver.deliver("n3", VoteRequest(5, 10, 4))
    node.seams.run()
    assert node.seams.sent == [("n3", VoteAnswer(5, False, False))]


def test_while_the_disk_is_waited_for_nothing_else_happens(tmp_path: Path) -> None:
    node = Node(tmp_path, "n1", "n2", "n3")
    node.driver.deliver("n2", VoteRequest(5, 10, 4))
    node.driver.deliver("n2", Heartbeat(5, "n2", -1, 1))
    node.seams.turn()
    node.seams.turn()
    assert node.driver.leader_id is None
    node.seams.run()
    assert node.driver.leader_id == "n2"


@pytest.mark.rule("R-01", "R-11")
def test_the_core_gets_no_input_while_the_disk_writes_its_term(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not from the end of a sync, from the clock, nor from clients."""
    node = leading_node(tmp_path)
    node.ask()
    node.seams.turn()
    node.driver.deliver("n2", Heartbeat(9, "n2", -1, 1))
    node.seams.turn()
    inputs: list[str] = []
    for name in ("ready", "synced", "tick", "step", "read_index", "propose"):

        def noted(*_given: object, name: str = name) -> None:
            inputs.append(name)

        monkeypatch.setattr(node.driver._core, name, noted)
    node.seams.work.popleft()()  # the sync of the append
    assert node.driver.log.durable_index == node.driver.log.end_index
    node.ask()
    node.driver.read_index(lambda _answer: None)
    node.driver.tick()
    node.seams.turn()
    assert inputs == []


# --- callbacks, waiters, journal, restart ---


def test_a_callback_that_raises_never_reaches_replication(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    def gone(_answer: object) -> None:
        raise ConnectionResetError("the client has gone")

    records = RecordColumns()
    records.add(b"v")
    node.driver.append(AppendRequest(records), gone)
    behind = node.ask()
    node.seams.run()
    assert result(behind[0]).first_index == 2
    assert node.seams.failures == []
    assert "callback" in caplog.text


def test_waiters_are_woken_by_their_commit_in_order_of_index(node: Node) -> None:
    woken: list[int] = []
    node.driver.when_committed(2, lambda: woken.append(2))
    node.driver.when_committed(1, lambda: woken.append(1))
    cancelled = node.driver.when_committed(1, lambda: woken.append(99))
    cancelled.cancel()
    node.append()
    assert woken == [1]
    node.append()
    assert woken == [1, 2]
    node.driver.when_committed(0, lambda: woken.append(0))
    assert woken == [1, 2, 0]


def confirmed_read(node: Node, index: int) -> list[int | CommitlogError]:
    """A read at a follower that its leader has confirmed for `index`; the list gets its answer."""
    answers: list[int | CommitlogError] = []
    node.driver.read_index(answers.append)
    node.seams.run()
    _, request = node.seams.sent[-1]
    node.driver.deliver("n2", ReadIndexAnswer(request.term, request.id, index))
    node.seams.run()
    return answers


@pytest.mark.rule("R-08")
def test_a_follower_answers_a_read_only_when_it_has_the_index(tmp_path: Path) -> None:
    node, log = follower_of_n2(tmp_path)
    answers = confirmed_read(node, 0)
    assert answers == []
    push_to(node, PushType.APPEND, 1, "n2", 0, log.batches[0])
    node.seams.run()
    assert answers == [0]


def test_a_confirmed_read_whose_index_does_not_come_is_given_up(tmp_path: Path) -> None:
    node, _ = follower_of_n2(tmp_path)
    answers = [confirmed_read(node, 5), confirmed_read(node, 6)]
    node.seams.now += DriverConfig().read_timeout_ms
    node.driver.tick()
    node.seams.run()
    codes = [answer.code for each in answers for answer in each if isinstance(answer, CommitlogError)]
    assert codes == ["read-index-unavailable"] * 2


@pytest.mark.rule("R-08")
def test_reads_that_wait_for_a_disk_that_hangs_have_a_deadline_and_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_gate, "ASKING_MAX", 2)
    node = Node(tmp_path, "n1", "n2", "n3")
    node.tick(2_000)
    node.driver.deliver("n2", VoteAnswer(1, True, pre_vote=True))
    node.seams.turn()  # its term and vote are on their way to the disk, and stay there
    answers: list[int | CommitlogError] = []
    for _ in range(3):
        node.driver.read_index(answers.append)
        node.seams.turn()
    assert (len(answers), node.driver.waiting_reads) == (1, 2)
    node.seams.now += DriverConfig().read_timeout_ms
    node.driver.tick()
    assert (len(answers), node.driver.waiting_reads) == (3, 0)


def test_a_read_without_a_leader_is_unavailable(tmp_path: Path) -> None:
    node = Node(tmp_path, "n1", "n2", "n3")
    answers: list[int | CommitlogError] = []
    node.driver.read_index(answers.append)
    node.seams.run()
    assert [error.code for error in answers if isinstance(error, CommitlogError)] == [
        "read-index-unavailable"
    ]


def test_the_journal_records_start_term_role_and_epoch(node: Node) -> None:
    [start] = node.events("start")
    assert start["version"] == "1.2.3"
    assert node.events("term") == [{"term": 1, "leader": "n1"}]
    assert node.events("role")[-1] == {"role": "leader", "leader": "n1"}
    [epoch] = node.events("epoch")
    assert (epoch["epoch"], epoch["leader"], epoch["start_index"], epoch["end_index"]) == (1, "n1", 0, None)


@pytest.mark.rule("D-20")
def test_the_committed_index_reaches_the_checkpoint_and_a_restart_knows_it(tmp_path: Path) -> None:
    node = Node(tmp_path, "n1")
    node.append()
    node.tick(20)
    node.tick(3_000)
    assert node.open().committed_index == 1  # it has not started: it cannot commit by itself yet


def test_a_clean_stop_saves_where_a_restart_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path)
    for number in range(20):
        node.append(idempotency_key=f"k{number}")
    stopped: list[bool] = []
    node.driver.stop(lambda: stopped.append(True))
    refused = node.ask()
    node.seams.run()
    assert stopped == [True]
    assert code(refused[0]) == "no-leader"
    assert node.events("stop") == [{}]
    read: list[int] = []
    original = Commitlog.read_batches

    def counted(log: Commitlog, from_index: int, *arguments: Any) -> Any:
        read.append(from_index)
        return original(log, from_index, *arguments)

    monkeypatch.setattr(Commitlog, "read_batches", counted)
    node.voters = ("n1", "n2", "n3")
    node.restart()
    assert min(read) >= 20  # the state came from its snapshot, not from the log
    assert node.driver.state.find_key("k0") is not None


@pytest.mark.rule("R-01")
def test_a_log_of_which_only_the_vote_is_left_is_damaged_not_new(tmp_path: Path) -> None:
    """It may have acknowledged anything: an empty log that votes would forget it."""
    node = Node(tmp_path)
    result(node.append())
    for path in (tmp_path / "logs" / "default").iterdir():
        if path.name != "vote":
            path.unlink()
    with pytest.raises(storage_errors.CorruptLog, match="missing"):
        node.restart()


def test_a_stop_while_the_disk_is_waited_for_comes_after_it(tmp_path: Path) -> None:
    node = leading_node(tmp_path)
    answers = node.ask()
    node.seams.run()
    node.driver.deliver("n2", Heartbeat(9, "n2", -1, 1))
    node.seams.turn()  # the newer term is on its way to the disk
    stopped: list[bool] = []
    node.driver.stop(lambda: stopped.append(True))
    late = node.ask()
    node.seams.run()
    assert code(late[0]) == "not-leader"
    assert code(answers[0]) == "term-changed"
    assert stopped == [True]
    assert node.events("stop") == [{}]


def test_status_shows_one_instant(node: Node) -> None:
    node.append(b"a", b"b")
    status = node.driver.status()
    assert (status.begin_index, status.end_index, status.next_index) == (0, 2, 3)
    assert (status.core.role, status.core.term, status.core.leader_id) == (Role.LEADER, 1, "n1")
    assert (status.end_offset, status.durability) == (node.driver.log.end_offset, Durability.FSYNC)
    assert node.driver.watermarks() == {1: {"n1": 2}}
    assert node.driver.watermarks(9) == {}


@pytest.mark.rule("D-23")
def test_a_leader_that_is_replaced_answers_term_changed(tmp_path: Path) -> None:
    node = leading_node(tmp_path)
    answers = node.ask()
    node.seams.run()
    assert answers == []
    node.driver.deliver("n2", Heartbeat(9, "n2", -1, 1))
    node.seams.run()
    assert code(answers[0]) == "term-changed"


@pytest.mark.rule("D-26")
def test_an_append_without_a_quorum_times_out_and_reports_its_index(tmp_path: Path) -> None:
    node = leading_node(tmp_path)
    answers = node.ask(timeout_ms=200)
    node.seams.run()
    for _ in range(20):
        keep_lead(node)
        node.tick(20)
    refusal = answers[0]
    assert code(refusal) == "quorum-timeout"
    assert isinstance(refusal, CommitlogError)
    assert refusal.fields() == {"first_index": 1}


@pytest.mark.parametrize("operation", ["read", "map"])
def test_records_that_cannot_be_read_for_a_peer_are_damage_not_the_end_of_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    damages: list[storage_errors.CorruptLog] = []
    node = Node(tmp_path, "n1", "n2", "n3", damaged=damages.append)
    node.tick(2_000)
    for pre_vote in (True, False):
        node.driver.deliver("n2", VoteAnswer(1, True, pre_vote=pre_vote))
        node.seams.run()
    assert node.driver.role is Role.LEADER

    def unreadable(*_args: object) -> None:
        raise storage_errors.DiskError("logs/default/0.log", operation, "Input/output error")

    monkeypatch.setattr(node.driver._core, "step", unreadable)
    node.driver.deliver("n2", Heartbeat(1, "n2", -1, 1))
    node.seams.run()
    assert node.seams.failures == []
    assert [(damage.path, damage.reason) for damage in damages] == [
        ("logs/default/0.log", "it cannot be read: Input/output error")
    ]


def test_a_repair_that_cannot_begin_ends_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the log would stay offline without a repair."""

    def begin(_damage: storage_errors.CorruptLog) -> None:
        raise storage_errors.DiskRefused("repairing/default", "open", "Too many open files")

    def damaged(*_args: object) -> None:
        raise storage_errors.CorruptLog("logs/default", 0, "checksum")

    node = Node(tmp_path, "n1", "n2", "n3", damaged=begin)
    monkeypatch.setattr(node.driver._core, "step", damaged)
    node.driver.deliver("n2", Heartbeat(1, "n2", -1, 1))
    node.seams.run()
    assert len(node.seams.failures) == 1
    assert "Too many open files" in str(node.seams.failures[0])


@pytest.mark.rule("D-22")
def test_unchanged_watermarks_are_written_once_a_minute(node: Node) -> None:
    result(node.append())
    for _ in range(3):
        node.tick(1_000)
    before = len(node.events("watermarks"))
    for _ in range(56):
        node.tick(1_000)
    assert len(node.events("watermarks")) == before
    for _ in range(8):
        node.tick(1_000)
    assert len(node.events("watermarks")) == before + 1
    result(node.append())
    node.tick(1_000)
    assert len(node.events("watermarks")) == before + 2


@pytest.mark.rule("D-22")
def test_the_end_of_a_term_writes_watermarks_that_have_not_changed(tmp_path: Path) -> None:
    """Otherwise an idle log seems to have had no leader for up to a minute before."""
    node = leading_node(tmp_path)
    for _ in range(4):
        keep_lead(node)
        node.tick(1_000)
    before = node.events("watermarks")
    node.driver.deliver("n2", Heartbeat(2, "n2", -1, 1))
    node.seams.run()
    assert node.driver.role is Role.FOLLOWER
    assert node.events("watermarks") == [*before, before[-1]]


@pytest.mark.rule("D-23", "D-26")
def test_no_append_waits_longer_than_its_timeout_for_a_disk_that_hangs(tmp_path: Path) -> None:
    """The disk hangs while it writes a newer term: what is in the log has an unknown outcome at once, what
    has not entered it is refused at its deadline."""
    node = leading_node(tmp_path)
    entered = node.ask(b"in the log", timeout_ms=400)
    read: list[int | CommitlogError] = []
    node.driver.read_index(read.append)
    node.seams.turn()
    node.driver.deliver("n3", VoteRequest(9, 99, 8, transfer=True))
    node.seams.turn()  # the hard state is with the disk, which does nothing from here on
    assert [code(answer) for answer in entered] == ["term-changed"]
    assert [isinstance(answer, ReadIndexUnavailable) for answer in read] == [True]
    late, patient = node.ask(b"late", timeout_ms=400), node.ask(b"patient", timeout_ms=60_000)
    commands: list[Any] = []
    node.driver.command(SetFence("t"), commands.append)
    node.seams.turn()
    node.seams.now += 400
    node.driver.tick()
    assert [code(answer) for answer in late] == ["no-leader"]
    assert (patient, commands) == ([], [])
    node.seams.now += 5_000
    node.driver.tick()
    assert [code(answer) for answer in commands] == ["no-leader"]
    node.seams.run()
    assert [code(answer) for answer in patient] == ["no-leader"]
    assert node.driver.term == 9
    assert len(late) == len(entered) == 1


@pytest.mark.rule("R-11")
@pytest.mark.parametrize("durability", list(Durability))
def test_a_repair_may_not_lose_acknowledged_records(tmp_path: Path, durability: Durability) -> None:
    """With `replicated` that is more than what is synced: a damage there is no torn tail."""
    node = Node(tmp_path, durability=durability)
    durable_index = node.driver.log.durable_index
    node.ask(b"written")
    node.seams.turn()
    assert node.driver.log.end_index > node.driver.log.durable_index == durable_index
    acknowledged = {Durability.FSYNC: durable_index, Durability.REPLICATED: node.driver.log.end_index}
    assert node.driver.held_index == acknowledged[durability]
