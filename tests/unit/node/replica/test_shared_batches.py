"""Appends of several clients that arrive in one turn get the answers that they get one after another."""

from collections import deque
from pathlib import Path
from random import Random
from typing import Any

import pytest

from app.errors import CommitlogError, LeaderPendingFull
from app.log.commands import SetFence
from app.log.contract import AppendRequest, AppendResult, AppendStream, Durability
from app.log.driver_interfaces import AppendLimits, DriverConfig
from app.log.producers import Producer
from app.node.replica.append_checks import check_quota
from app.node.replica.append_queue import GATHER_MAX_BYTES, GATHER_MAX_MS
from app.node.replica.open_appends import OpenAppend
from storage.format.records import RecordColumns
from storage.units import KIB
from tests.unit.node.replica.driver_support import Limits, Node, leading_node

STREAMS = 2
CLIENTS = 14  # in one turn
TURNS = 15
REFUSALS = {
    "fenced",
    "idempotency-key-reused",
    "index-mismatch",
    "rate-limited",
    "request-outstanding",
    "term-mismatch",
}


def request_of(random: Random, next_index: int) -> dict[str, Any]:
    """A request that may be refused: a key again, a gap of a producer, a stale index, an old token."""
    given: dict[str, Any] = {"count": random.choice((1, 1, 2, 5)), "digest": random.choice((b"a", b"b")) * 16}
    if random.random() < 0.5:
        given["idempotency_key"] = random.choice("abcdefghijklmnopqrstuvwxyz")
    if random.random() < 0.2:
        given["producer"] = Producer(
            random.choice("pq"), random.choice((0, 0, 0, 1)), random.randrange(9), random.random() < 0.1
        )
    if random.random() < 0.2:
        given["match_index"] = next_index + random.randrange(-2, 8)
    if random.random() < 0.2:
        given["match_term"] = random.choice((1, 1, 2))
    if random.random() < 0.9:
        given["fencing_token"] = "t"
    if random.random() < 0.2:
        given["stream"] = random.randrange(STREAMS)
    return given


def outcome(answer: AppendResult | CommitlogError) -> tuple[object, ...]:
    if isinstance(answer, CommitlogError):
        return (answer.code, str(answer))
    return (answer.first_index, answer.last_index, answer.term, answer.replayed)


def streams() -> list[AppendStream]:
    return [AppendStream() for _ in range(STREAMS)]


class Side:
    """A node whose appends share batches of at most so many bytes."""

    def __init__(self, folder: Path, coalesce_max_bytes: int) -> None:
        self.node = Node(
            folder,
            limits=Limits(max_idempotency_keys=10, max_producers=1, max_pending_requests=1_000),
            config=DriverConfig(coalesce_max_bytes=coalesce_max_bytes),
        )
        self.node.command(SetFence("t"))
        self.streams = streams()

    def ask(self, place: int, given: dict[str, Any]) -> list[AppendResult | CommitlogError]:
        options = dict(given)
        values = [b"%d" % place] * options.pop("count")
        if "stream" in options:
            options["stream"] = self.streams[options["stream"]]
        return self.node.ask(*values, **options)


@pytest.mark.rule("D-28")
@pytest.mark.parametrize("seed", range(9))
def test_clients_that_share_a_turn_are_answered_as_one_after_another(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    together = Side(tmp_path / "together", (1, 4_000_000, 2_000)[seed % 3])
    apart = Side(tmp_path / "apart", 4_000_000)
    seen: set[object] = set()
    for _ in range(TURNS):
        together.streams, apart.streams = streams(), streams()
        requests = [request_of(random, together.node.driver.log.next_index) for _ in range(CLIENTS)]
        shared = [together.ask(place, given) for place, given in enumerate(requests)]
        together.node.seams.run()
        for place, given in enumerate(requests):
            answers = apart.ask(place, given)
            apart.node.seams.run()
            assert len(shared[place]) == len(answers) == 1
            assert outcome(shared[place][0]) == outcome(answers[0]), (place, given)
            seen.add(outcome(answers[0])[0])
        assert together.node.driver.log.next_index == apart.node.driver.log.next_index
    assert seen >= REFUSALS
    assert together.node.driver._queue._open.size_bytes == 0  # nothing waits


@pytest.mark.rule("D-28")
def test_many_large_appends_take_several_turns_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one turn all other logs of the node, and its heartbeats, would wait for them."""
    node = Node(tmp_path)
    monkeypatch.setattr("app.node.replica.append_queue.TURN_BYTES", 1_500)
    monkeypatch.setattr("app.node.replica.append_queue.GATHER_MAX_BYTES", 0)  # none waits for the sync
    asked = [node.ask(bytes(1_000)) for _ in range(7)]
    ends = []
    for _ in range(4):
        node.seams.turn()
        ends.append(node.driver.log.end_index)
    assert ends == [2, 4, 6, 7]
    assert not node.seams.soon
    node.seams.run()
    assert [outcome(each[0])[0] for each in asked] == [1, 2, 3, 4, 5, 6, 7]


def test_appends_that_arrive_during_a_sync_wait_for_as_many_as_are_in_flight(tmp_path: Path) -> None:
    node = Node(tmp_path)
    in_flight = [node.ask(), node.ask()]
    node.seams.turn()
    assert (node.driver.log.end_index, len(node.seams.work)) == (2, 1)  # the sync of both is due
    gathered = [node.ask()]
    node.seams.turn()
    assert node.driver.log.end_index == 2
    gathered.append(node.ask())
    node.seams.turn()
    assert node.driver.log.end_index == 4
    assert node.driver.log.batch_at(3).count == 2
    node.seams.run()
    assert [outcome(each[0])[0] for each in (*in_flight, *gathered)] == [1, 2, 3, 4]


def test_a_sync_that_ends_lets_the_gathered_appends_in(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.ask(), node.ask()
    node.seams.turn()
    gathered = node.ask()
    node.seams.turn()
    node.seams.work.popleft()()
    assert (node.driver.log.durable_index, node.driver.log.end_index) == (2, 3)
    node.seams.run()
    assert outcome(gathered[0])[0] == 3


def test_appends_are_not_gathered_for_long_while_the_disk_hangs(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.ask(), node.ask()
    node.seams.turn()
    node.ask()
    node.seams.turn()
    hanging, node.seams.work = node.seams.work, deque()
    node.tick(GATHER_MAX_MS - 1)
    assert node.driver.log.end_index == 2
    node.tick(1)
    assert node.driver.log.end_index == 3
    node.seams.work = hanging
    node.seams.run()
    assert node.driver.log.durable_index == 3


def test_appends_of_a_hundred_records_are_gathered(tmp_path: Path) -> None:
    node = Node(tmp_path)
    values = [b"v" * KIB] * 100
    node.ask(*values), node.ask(*values)
    node.seams.turn()
    assert node.driver.log.end_index == 200
    node.ask(*values)
    node.seams.turn()
    assert node.driver.log.end_index == 200
    node.ask(*values)
    node.seams.turn()
    assert node.driver.log.end_index == 400
    assert node.driver.log.batch_at(201).count == 200


def test_large_appends_and_commands_are_not_gathered(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.ask(), node.ask()
    node.seams.turn()
    node.ask(b"v" * GATHER_MAX_BYTES)
    node.seams.turn()
    assert node.driver.log.end_index == 3
    node.ask(fencing_token="t")
    node.driver.command(SetFence("t"), lambda _answer: None)
    node.seams.turn()
    assert node.driver.log.end_index == 5


def test_a_replicated_log_gathers_nothing(tmp_path: Path) -> None:
    config = DriverConfig(sync_interval_ms=0)
    node = leading_node(tmp_path, durability=Durability.REPLICATED, config=config)
    node.ask(), node.ask()
    node.seams.turn()
    node.driver.tick()
    assert node.seams.work  # the sync is due
    node.ask()
    node.seams.turn()
    assert node.driver.log.end_index == 3


def group_of(node: Node, members: int, **options: Any) -> tuple[OpenAppend, list[Any]]:
    """Queue a group whose members have joined one by one; all have to be admitted to it."""
    records, answers = RecordColumns(), list[Any]()
    records.add(b"v")
    append = node.driver.append(AppendRequest(records, **options), answers.append)
    for _ in range(members - 1):
        assert join(node, append)
    return append, answers


def join(node: Node, append: OpenAppend) -> bool:
    joins = node.driver.grow(append, 1, node.seams.now)
    if joins:
        append.request.records.add(b"v")  # type: ignore[union-attr]
    return joins


def test_a_group_grows_until_it_enters_the_log(tmp_path: Path) -> None:
    node = Node(tmp_path)
    append, answers = group_of(node, 3)
    node.seams.turn()
    assert not join(node, append)
    node.seams.run()
    assert outcome(answers[0]) == (1, 3, 1, False)
    assert (node.driver._queue._open.count, node.driver._queue._open.size_bytes) == (0, 0)


@pytest.mark.rule("D-29")
def test_limits_count_every_member_of_a_group(tmp_path: Path) -> None:
    node = Node(tmp_path, "n1", limits=Limits(max_pending_requests=5))
    append, _ = group_of(node, 5)
    assert not join(node, append)
    [refusal] = node.ask()
    assert outcome(refusal)[0] == "leader-pending-full"
    node.seams.turn()
    assert node.driver.log.end_index == 5  # they wait for the disk
    _, answers = group_of(node, 2)
    node.seams.turn()
    assert outcome(answers[0])[0] == "leader-pending-full"
    node.seams.run()
    _, answers = group_of(node, 2)
    node.seams.run()
    assert outcome(answers[0]) == (6, 7, 1, False)
    assert node.driver._queue._open.count == 0


@pytest.mark.rule("D-29")
def test_a_group_that_does_not_fit_as_a_whole_is_refused_as_a_whole(tmp_path: Path) -> None:
    node = Node(tmp_path, limits=Limits(max_pending_requests=5, max_pending_bytes=4))
    first = node.ask(b"vv")
    node.seams.turn()
    _, answers = group_of(node, 3)
    node.seams.turn()
    assert outcome(answers[0])[0] == "leader-pending-full"
    assert node.driver.log.end_index == 1
    node.seams.run()
    assert outcome(first[0])[0] == 1


@pytest.mark.rule("D-26")
def test_no_member_of_a_group_times_out_early(tmp_path: Path) -> None:
    """The deadline is that of the last one; after GATHER_MAX_MS none can join, so it is hardly later."""
    node = Node(tmp_path)
    append, answers = group_of(node, 1, timeout_ms=100)
    node.seams.now += GATHER_MAX_MS - 1
    assert join(node, append)
    assert append.deadline_ms == node.seams.now + 100
    node.seams.now += 1
    assert not join(node, append)
    node.seams.turn()
    node.seams.now = append.deadline_ms - 1
    node.driver.tick()
    assert answers == []
    node.seams.now += 1
    node.driver.tick()
    assert outcome(answers[0])[0] == "quorum-timeout"
    assert answers[0].first_index == 1
    assert node.driver._queue._open.count == 0


def test_appends_gather_for_a_group_that_waits_for_its_sync(tmp_path: Path) -> None:
    node = Node(tmp_path)
    group_of(node, 3)
    node.seams.turn()
    later, _ = group_of(node, 2)
    node.seams.turn()
    assert node.driver.log.end_index == 3
    assert join(node, later)
    node.seams.turn()
    node.driver.tick()
    assert node.driver.log.end_index == 6


def test_a_group_whose_node_stops_is_refused_and_takes_no_more(tmp_path: Path) -> None:
    node = Node(tmp_path)
    append, answers = group_of(node, 2)
    node.driver.stop()
    assert outcome(answers[0])[0] == "no-leader"
    assert not join(node, append)
    assert node.driver._queue._open.count == 0


def test_an_append_beyond_the_limit_is_accepted_only_alone() -> None:
    """A group is none: of its members, only the first one would have been accepted."""
    records = RecordColumns()
    records.add(b"x" * 20)
    limits: AppendLimits = Limits(max_pending_bytes=10)
    check_quota(limits, 0, 0, AppendRequest(records))
    with pytest.raises(LeaderPendingFull):
        check_quota(limits, 1, 1, AppendRequest(records))
    with pytest.raises(LeaderPendingFull):
        check_quota(limits, 0, 0, AppendRequest(records, appends=2))
