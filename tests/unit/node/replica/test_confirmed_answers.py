"""Answers that depend on the log's state wait until that state is committed and the lead is confirmed."""

from pathlib import Path
from typing import Any

import pytest

from app.errors import CommitlogError, ReadIndexUnavailable, RequestOutstanding
from app.ha.frames import ClassicReport
from app.ha.messages import INCOMING, Opened
from app.log.commands import Command, CommandResult, MoveCursor, SetFence
from app.log.contract import AppendRequest, AppendResult, AppendStream, Role
from app.log.driver_interfaces import DriverConfig
from app.log.producers import Producer
from app.raft.messages import Heartbeat, HeartbeatAnswer, PushAnswer, PushCode, PushRequest, PushType
from storage.errors import StorageFull
from storage.format.batch import Batch
from storage.format.records import RecordColumns
from tests.unit.node.replica.driver_support import Limits, Node, classic_mode, code, leading_node, result

FOLLOWER_LIFE = 9


class Led:
    """n1 leads n2 and n3 in an open term; only n2 answers, and only when a test lets it."""

    def __init__(self, folder: Path) -> None:
        self.node = leading_node(folder)
        self.driver = self.node.driver
        self._answer_pushes()
        self._answer_pushes()
        self.confirm()
        assert self.driver.committed_index == 0

    def _sent(self, kind: type) -> list[Any]:
        return [message for to, message in self.node.seams.sent if to == "n2" and isinstance(message, kind)]

    def _answer_pushes(self) -> None:
        push = self._sent(PushRequest)[-1]
        if push.type is PushType.COMPARE:
            answer = PushAnswer(
                1, push.type, PushCode.INCONSISTENT_STATE, push.session, FOLLOWER_LIFE, push.index, -1, -1
            )
        else:
            end = push.batches[-1].last_index
            answer = PushAnswer(1, push.type, PushCode.SUCCESS, push.session, FOLLOWER_LIFE, end, 0, end)
        self.driver.deliver("n2", answer)
        self.node.seams.run()

    def store(self) -> None:
        """n2 holds all that n1 holds."""
        session = self._sent(PushRequest)[-1].session
        end = self.driver.log.end_index
        answer = PushAnswer(1, PushType.APPEND, PushCode.SUCCESS, session, FOLLOWER_LIFE, end, 0, end)
        self.driver.deliver("n2", answer)
        self.node.seams.run()
        assert self.driver.committed_index == end

    def confirm(self, *, sound: bool = True) -> None:
        """n2 answers the last heartbeat. sound: its claim about itself."""
        self.driver.deliver("n2", HeartbeatAnswer(1, self._sent(Heartbeat)[-1].round, sound=sound))
        self.node.seams.run()

    def ask(self, *values: bytes, **options: Any) -> list[AppendResult | CommitlogError]:
        answers = self.node.ask(*values, **options)
        self.node.seams.run()
        return answers

    def command(self, command: Command) -> list[CommandResult | CommitlogError]:
        answers: list[CommandResult | CommitlogError] = []
        self.driver.command(command, answers.append)
        self.node.seams.run()
        return answers

    def depose(self) -> None:
        """n3 leads term 2, and has nothing of what n2 did not store."""
        self.driver.deliver("n3", Heartbeat(2, "n3", 0, 1))
        self.node.seams.run()


@pytest.fixture
def led(tmp_path: Path) -> Led:
    return Led(tmp_path)


@pytest.mark.rule("R-08")
@pytest.mark.parametrize(
    ("before", "refused", "expected"),
    [
        ({"idempotency_key": "k"}, {"idempotency_key": "k", "digest": b"e" * 16}, "idempotency-key-reused"),
        ({"producer": Producer("p", 1, 4)}, {"producer": Producer("p", 1, 9)}, "sequence-gap"),
        ({"producer": Producer("p", 1, 4)}, {"producer": Producer("p", 0, 4)}, "producer-fenced"),
        ({}, {"match_index": 1}, "index-mismatch"),
    ],
)
def test_a_refusal_waits_for_the_records_that_decided_it(
    led: Led, before: dict[str, Any], refused: dict[str, Any], expected: str
) -> None:
    first = led.ask(**before)
    second = led.ask(**refused)
    led.confirm()
    assert (first, second) == ([], [])
    led.store()
    assert result(*first).first_index == 1
    assert code(*second) == expected


@pytest.mark.rule("R-08")
def test_a_refusal_by_what_is_undone_is_never_given(led: Led) -> None:
    """The fence was set by a record that no other member holds; the next leader does not know it."""
    fence = led.command(SetFence("w-a"))
    refused = led.ask()
    led.confirm()
    assert (fence, refused) == ([], [])
    led.depose()
    assert (code(*fence), code(*refused)) == ("term-changed", "no-leader")


@pytest.mark.rule("R-08")
def test_a_refusal_waits_until_the_lead_is_confirmed(led: Led) -> None:
    """All is committed here; but another leader may have changed it, unknown to this one."""
    refused, moved = led.ask(match_index=7), led.command(MoveCursor("etl", 1, True, if_match=3))
    assert (refused, moved) == ([], [])
    led.confirm()
    led.confirm()
    assert (code(*refused), code(*moved)) == ("index-mismatch", "cursor-moved")
    refused = led.ask(match_index=7)
    led.depose()
    assert code(*refused) == "no-leader"


@pytest.mark.rule("R-08")
def test_a_command_that_changes_nothing_is_confirmed_too(led: Led) -> None:
    unchanged = led.command(SetFence(None))
    assert unchanged == []
    led.depose()
    assert code(*unchanged) == "no-leader"


@pytest.mark.rule("H-07")
def test_a_classic_master_confirms_nothing_that_no_slave_has(tmp_path: Path) -> None:
    """The repeat of a fence was answered with 200 while only the disk of the master had the fence."""
    node = Node(tmp_path, mode=classic_mode("n1"))

    def slave_sends(*messages: Any) -> None:
        for message in messages:
            node.driver.deliver(f"{INCOMING}1", message)
        node.tick(1)

    slave_sends(Opened(replica=2), ClassicReport(0))
    slave_sends(ClassicReport(node.driver.log.end_offset))
    first: list[CommandResult | CommitlogError] = []
    node.driver.command(SetFence("w-a"), first.append)
    node.seams.run()
    repeat: list[CommandResult | CommitlogError] = []
    node.driver.command(SetFence("w-a"), repeat.append)
    node.seams.run()
    assert code(node.append()) == "fenced"  # the master keeps the fence, committed or not
    assert (first, repeat) == ([], [])
    slave_sends(ClassicReport(node.driver.log.end_offset))
    assert [isinstance(each, CommandResult) and each.changed for each in (*first, *repeat)] == [True, False]


def test_a_refusal_that_cannot_be_confirmed_ends_with_its_time(led: Led) -> None:
    led.ask()
    refused = led.ask(match_index=1, timeout_ms=200)
    for _ in range(15):
        led.confirm()
        led.node.tick(20)
    assert code(*refused) == "no-leader"


@pytest.mark.rule("R-08")
@pytest.mark.parametrize("timeout_ms", [200, 5_000])
def test_a_voter_that_is_not_sound_leaves_no_refusal_unanswered(led: Led, timeout_ms: int) -> None:
    """It keeps the leader in its place and confirms nothing: the time of the append or the read ends it."""
    reads: list[int | CommitlogError] = []
    refused = led.ask(match_index=7, timeout_ms=timeout_ms)
    led.driver.read_index(reads.append)
    led.node.seams.run()
    for _ in range(min(timeout_ms, 1_000) // 20 + 2):
        led.confirm(sound=False)
        led.node.tick(20)
    assert led.driver.role is Role.LEADER
    assert code(*refused) == "no-leader"
    if timeout_ms > 1_000:
        assert isinstance(reads[0], ReadIndexUnavailable)
        assert led.driver.waiting_reads == 0


@pytest.mark.rule("R-08")
def test_a_repeat_is_answered_when_the_first_is_committed(led: Led) -> None:
    first, again = led.ask(idempotency_key="k"), led.ask(idempotency_key="k")
    led.confirm()
    assert (first, again) == ([], [])
    led.store()
    assert (result(*first).replayed, result(*again).replayed) == (False, True)


@pytest.mark.rule("R-08")
def test_a_confirmed_read_does_not_see_a_cursor_that_is_not_committed(led: Led) -> None:
    moved = led.command(MoveCursor("etl", 42, True))
    got: list[Any] = []
    led.driver.read_index(got.append)
    led.node.seams.run()
    led.confirm()
    assert (moved, got) == ([], [0])
    assert led.driver.state.committed_cursor("etl") is None
    led.store()
    held = led.driver.state.committed_cursor("etl")
    assert held is not None
    assert (held.position, held.revision) == (42, 1)


# --- match_index ---


def test_match_index_holds_over_control_records(node: Node) -> None:
    """A writer alone with the service's own cursor moves: they take indexes, and break nothing."""
    last = result(node.append(b"a", b"b", match_index=1)).last_index
    for position in range(5):
        node.command(MoveCursor("etl", position, True))
    assert code(node.append(match_index=last)) == "index-mismatch"
    assert code(node.append(match_index=last + 7)) == "index-mismatch"
    assert result(node.append(match_index=last + 1)).first_index == last + 6
    assert result(node.append(match_index=last + 7)).first_index == last + 7
    node.command(MoveCursor("etl", 6, True))
    assert result(node.append(match_index=last + 9)).first_index == last + 9


def test_match_index_counts_data_that_is_not_committed(led: Led) -> None:
    led.ask()
    led.command(MoveCursor("etl", 1, True))
    refused, holds = led.ask(match_index=1), led.ask(match_index=2)
    led.store()
    led.confirm()
    assert code(*refused) == "index-mismatch"
    assert result(*holds).first_index == 3


def test_match_index_holds_after_a_restart_behind_control_records(node: Node) -> None:
    last = result(node.append()).last_index
    node.restart()
    node.command(MoveCursor("etl", 1, True))
    assert code(node.append(match_index=last)) == "index-mismatch"
    assert result(node.append(match_index=last + 1)).first_index == last + 3


# --- streams ---


def streamed(node: Node, stream: AppendStream, *values: bytes, **options: Any) -> list[str]:
    """Ask for all values of a stream within one turn; the names of the answers, in their order."""
    answers: list[Any] = [None] * len(values)
    for number, value in enumerate(values):
        records = RecordColumns()
        records.add(value)
        node.driver.append(
            AppendRequest(records, stream=stream, **options),
            lambda answer, number=number: answers.__setitem__(number, answer),
        )
    node.seams.run()
    return [answer.code if isinstance(answer, CommitlogError) else "stored" for answer in answers]


def little_room(node: Node, bytes_at_most: int) -> None:
    """Refuse batches that are larger."""
    log, append = node.driver.log, node.driver.log.append

    def refusing(batches: tuple[Batch, ...]) -> None:
        if sum(batch.size_bytes for batch in batches) > bytes_at_most:
            raise StorageFull("log", "write", "no space left")
        append(batches)

    log.append = refusing  # type: ignore[method-assign]


def test_nothing_of_a_stream_is_stored_after_what_the_disk_refused(tmp_path: Path) -> None:
    node = Node(tmp_path, config=DriverConfig(coalesce_max_bytes=10_000))
    little_room(node, 20_000)
    stream = AppendStream()
    answers = streamed(node, stream, b"x" * 30_000, b"second", b"third")
    assert answers == ["storage-full", "request-outstanding", "request-outstanding"]
    assert streamed(node, stream, b"later") == ["request-outstanding"]
    assert node.driver.log.end_index == 0
    assert streamed(node, AppendStream(), b"another stream") == ["stored"]


@pytest.mark.rule("R-08")
def test_a_refusal_by_records_that_were_never_stored_is_withdrawn(tmp_path: Path) -> None:
    """Another append of the turn takes their places: the answer would name an end that the log never had."""
    node = Node(tmp_path, config=DriverConfig(coalesce_max_bytes=10_000))
    little_room(node, 7_000)
    large, conditional = node.ask(b"x" * 8_000), node.ask(b"y", match_index=1)
    small = node.ask(b"z" * 5_000)
    node.seams.run()
    assert [code(*large), code(*conditional), result(*small).first_index] == ["storage-full"] * 2 + [1]


@pytest.mark.parametrize("waits", [1, 100_000])
def test_nothing_of_a_stream_is_stored_after_what_found_no_room_to_wait(tmp_path: Path, waits: int) -> None:
    node = Node(tmp_path, limits=Limits(max_pending_requests=waits, max_pending_bytes=1_000))
    stream = AppendStream()
    answers = streamed(node, stream, b"a", b"b" * 2_000, b"c")
    assert answers[1] == "leader-pending-full"
    assert streamed(node, stream, b"d") == ["request-outstanding"]
    assert answers.index("leader-pending-full") >= answers.count("stored") == node.driver.log.end_index


def test_nothing_of_a_stream_enters_after_an_unknown_outcome(led: Led) -> None:
    stream = AppendStream()
    records = RecordColumns()
    records.add(b"a")
    answers: list[Any] = []
    led.driver.append(AppendRequest(records, stream=stream, timeout_ms=100), answers.append)
    led.node.seams.run()
    for _ in range(10):
        led.confirm()
        led.node.tick(20)
    assert code(*answers) == "quorum-timeout"
    assert streamed(led.node, stream, b"b") == ["request-outstanding"]
    assert led.driver.log.end_index == 1


def test_nothing_of_a_stream_enters_while_a_refusal_is_confirmed(led: Led) -> None:
    stream = AppendStream()
    assert streamed(led.node, stream, b"a", b"b", match_index=1)  # no answer yet: all waits for n2
    assert stream.broken
    assert led.driver.log.end_index == 1
    led.store()
    led.confirm()
    assert streamed(led.node, stream, b"c") == ["request-outstanding"]
    [refusal] = led.ask(b"d", stream=stream)
    assert isinstance(refusal, RequestOutstanding)
    assert "first_outcome" not in refusal.problem("/", "r")  # this append is not a repeat


# --- limits ---


def test_keys_producers_and_cursors_are_limited_and_nothing_is_forgotten(tmp_path: Path) -> None:
    node = Node(tmp_path, limits=Limits(max_idempotency_keys=2, max_producers=2, max_cursors=2))
    for name in "ab":
        result(node.append(idempotency_key=name))
        result(node.append(producer=Producer(name, 0, 0)))
        assert isinstance(node.command(MoveCursor(name, 1, False)), CommandResult)
    assert code(node.append(idempotency_key="c")) == "rate-limited"
    assert code(node.append(producer=Producer("c", 0, 0))) == "rate-limited"
    assert code(node.command(MoveCursor("c", 1, False))) == "rate-limited"
    assert result(node.append(idempotency_key="a")).replayed
    assert result(node.append(producer=Producer("b", 0, 1))).replayed is False
    assert isinstance(node.command(MoveCursor("b", 2, False)), CommandResult)
    result(node.append())
    assert node.driver.state.key_count == 2


def test_the_limit_counts_the_appends_of_the_same_turn(tmp_path: Path) -> None:
    node = Node(tmp_path, limits=Limits(max_idempotency_keys=2, max_producers=1))
    keyed = [node.ask(idempotency_key=name) for name in "abc"]
    produced = [node.ask(producer=Producer(name, 0, 0)) for name in "pq"]
    node.seams.run()
    assert [isinstance(answer, AppendResult) for (answer,) in keyed] == [True, True, False]
    assert [isinstance(answer, AppendResult) for (answer,) in produced] == [True, False]
    assert code(*keyed[2]) == code(*produced[1]) == "rate-limited"


@pytest.mark.rule("R-08")
def test_an_answer_that_an_earlier_term_has_decided_is_withdrawn(led: Led) -> None:
    """Its log may have been truncated before this node led again."""
    given: list[str] = []
    queue = led.driver._queue
    queue._decide(lambda: given.append("given"), lambda refusal: given.append(refusal.code), 10**9)
    queue._decided[0].term -= 1
    led.node.tick(20)
    assert given == ["no-leader"]


@pytest.mark.rule("R-08")
def test_the_heartbeats_of_a_tick_confirm_the_reads_that_were_asked_before_it(led: Led) -> None:
    led.node.seams.sent.clear()
    answers: list[int | CommitlogError] = []
    led.driver.read_index(answers.append)
    led.node.seams.now += 100  # the next heartbeats are due
    led.driver.tick()
    assert [to for to, message in led.node.seams.sent if isinstance(message, Heartbeat)] == ["n2", "n3"]
    led.confirm()
    assert answers == [0]
