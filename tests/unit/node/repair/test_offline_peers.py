"""Peers that do not serve or do not vote: a copy under repair gives what is intact, a learner what it has."""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from app.log.contract import NO_INDEX
from app.log.terms import TERM_UNKNOWN
from app.node.network.repair_messages import FetchAnswer, FetchRequest, PeerCall, TermAnswer, TermRequest
from app.node.repair import fetch as fetch_module
from app.node.repair import proof
from app.node.repair.fetch import NOT_SETTLED_ROUNDS, Fetch
from app.node.repair.log_repair import LogRepair
from app.node.repair.marker import RepairMarker
from storage.care.intact import intact_batches
from storage.errors import CorruptLog, DiskError
from storage.format.batch import Batch, stamp
from storage.format.records import RecordColumns, encode_body
from storage.log.checkpoint import Checkpoint, CheckpointFile
from storage.log.commitlog import Commitlog
from storage.log.hard_state import HardState, HardStateFile
from tests.unit.node.repair.damaged_log import BATCHES, FOLDER, SIZES, Peers, Scene, gives_all
from tests.unit.node.repair.test_fetch import history
from tests.unit.node.repair.test_server import Node

LARGE = 1 << 30


class Offline:
    """A log under repair that holds all records, and knows those before index 20 to be committed; or one that
    cannot be read."""

    def __init__(self, *, fails: bool = False, term: int | None = None) -> None:
        self.fails = fails
        self.saved_term = term

    async def term(self) -> int | None:
        if self.fails:
            raise DiskError("vote", "read", "input/output error")
        return self.saved_term

    async def held(
        self, first_index: int, last_index: int, max_bytes: int, *, committed: bool
    ) -> Sequence[Batch]:
        if self.fails:
            raise DiskError("log", "read", "input/output error")
        last_index = min(last_index, 19) if committed else last_index
        return [
            batch for batch in BATCHES if first_index <= batch.base_index and batch.last_index <= last_index
        ]


def ask(node: Node, offline: Offline, request: PeerCall) -> object:
    asyncio.run(node.server.answer("n2", 7, None, request, offline))
    return node.sent.pop() if node.sent else None


@pytest.mark.rule("R-01")
def test_a_log_under_repair_reports_its_term_or_that_it_is_lost() -> None:
    node = Node(committed=19)
    assert ask(node, Offline(), TermRequest(1)) is None  # its term will be known
    assert ask(node, Offline(fails=True), TermRequest(1)) is None
    for term in (8, TERM_UNKNOWN):
        assert ask(node, Offline(term=term), TermRequest(1)) == TermAnswer(1, term, 0)


@pytest.mark.rule("R-07")
def test_a_log_under_repair_gives_batches_and_proves_nothing_by_their_absence() -> None:
    node = Node(committed=19)
    assert ask(node, Offline(), FetchRequest(1, 4, 7)) == FetchAnswer(1, 4, 7, False, tuple(BATCHES[2:4]))
    assert ask(node, Offline(), FetchRequest(1, 20, 23)) == FetchAnswer(1, -1, -1)
    later = FetchAnswer(1, 20, 23, False, tuple(BATCHES[10:12]))
    assert ask(node, Offline(), FetchRequest(1, 20, 23, held=True)) == later
    assert ask(node, Offline(), FetchRequest(1, 80, 99, held=True)) == FetchAnswer(1, -1, -1)
    assert ask(node, Offline(fails=True), FetchRequest(1, 4, 7)) == FetchAnswer(1, -1, -1)


@pytest.mark.rule("R-07")
def test_only_what_the_survey_found_intact_and_is_committed_is_given() -> None:
    scene = Scene()
    CheckpointFile(scene.files, f"{FOLDER}/checkpoint").save(Checkpoint(69))
    damage = scene.damage(25)
    scene.damage(12)
    given: dict[int, tuple[int, int] | None] = {}
    on_request: dict[int, tuple[int, int] | None] = {}

    async def held(repair: LogRepair, first: int, *, committed: bool = True) -> tuple[int, int] | None:
        found = await repair.held(first, 79, LARGE, committed=committed)
        return (found[0].base_index, found[-1].last_index) if found else None

    async def meanwhile(repair: LogRepair) -> None:
        assert await held(repair, 0) is None  # before the survey
        while not repair.left:  # noqa: ASYNC110  # bounded by Scene.run
            await asyncio.sleep(0.001)
        for first in (0, 24, 26, 52, 70):
            given[first] = await held(repair, first)
            on_request[first] = await held(repair, first, committed=False)
        repair.give_up()

    scene.run(Peers(lambda _peer, message: FetchAnswer(message.id, -1, -1)), damage, meanwhile=meanwhile)
    first, second = given[26], given[52]
    assert given[0] == (0, 23)
    assert given[24] is None
    assert first is not None
    assert first[1] == 49
    assert second is not None
    assert second[1] == 69
    assert given[70] is None
    assert on_request == given | {52: (52, 79), 70: (70, 79)}


@pytest.mark.parametrize("seed", range(8))
def test_every_intact_batch_is_found_whatever_is_damaged(seed: int) -> None:
    random = Random(seed)
    scene = Scene()
    damaged = set(random.sample(range(len(BATCHES)), 6))
    for position in damaged:
        scene.damage(position, b"noise")
    if seed % 2:
        for name in scene.files.list(FOLDER):
            if name.endswith(".index"):
                scene.files.open(f"{FOLDER}/{name}").pwrite(b"\xff" * 80, 0)
    for position, batch in enumerate(BATCHES):
        found = intact_batches(scene.files, FOLDER, 7, batch.base_index, 79, LARGE)
        end = min((each for each in damaged if each >= position), default=len(BATCHES))
        assert list(found) == BATCHES[position:end], position
    assert intact_batches(scene.files, FOLDER, 7, 1, 79, LARGE) == ()
    whole = [batch for position, batch in enumerate(BATCHES[:2]) if position not in damaged]
    if len(whole) == 2:
        assert list(intact_batches(scene.files, FOLDER, 7, 0, 79, 1)) == BATCHES[:1]


@pytest.mark.parametrize("voters", [("n1",), ("n1", "n2")])
def test_learners_give_what_no_voter_can(voters: tuple[str, ...]) -> None:
    """n1 is the only controller, or the other voter has lost its disk: n3 holds the log all the same."""
    scene = Scene()
    scene.learners = ("n3",)

    def answers(peer: str, message: PeerCall) -> PeerCall | None:
        return gives_all(peer, message) if peer == "n3" else FetchAnswer(message.id, NO_INDEX, NO_INDEX)

    repair = scene.run(Peers(answers), scene.damage(12), voters=voters)
    assert list(repair.result.peers) == ["n3"]
    assert scene.host.sound is True
    assert scene.host.log is not None
    assert scene.host.log.batch_at(24) == BATCHES[12]


@pytest.mark.rule("R-07")
def test_learners_testify_nothing() -> None:
    """A learner lags: the range may be committed all the same."""
    fetch = Fetch(4, 11, ("n2", "n3", "n4"), 2, voters=("n2",))
    for _ in range(3 * NOT_SETTLED_ROUNDS):
        fetch.took(fetch.next().peer, FetchAnswer(1, 0, 3))
    assert not fetch.hopeless
    alone = Fetch(4, 11, ("n2", "n3"), 1, voters=())
    for _ in range(3 * NOT_SETTLED_ROUNDS):
        alone.took(alone.next().peer, FetchAnswer(1, 8, 19))
    assert (alone.hopeless, alone.trimmed_until) == (False, None)


def other_history(message: FetchRequest) -> FetchAnswer:
    others = [each for each in history(41, salt="other") if each.base_index >= message.first_index]
    return FetchAnswer(message.id, 0, 81, False, tuple(others[:1]))


@pytest.mark.rule("R-07")
def test_a_learner_with_another_history_ends_no_repair() -> None:
    """n2 is busy at first, and has the records; those of n3 were of a log that was restored from a backup."""
    scene, asked = Scene(), []
    scene.learners = ("n3",)
    CheckpointFile(scene.files, f"{FOLDER}/checkpoint").save(Checkpoint(39))

    def answers(peer: str, message: PeerCall) -> PeerCall | None:
        assert isinstance(message, FetchRequest)
        asked.append(peer)
        if peer == "n3":
            return other_history(message)
        return gives_all(peer, message) if "n3" in asked else FetchAnswer(message.id, 0, 79, busy=True)

    repair = scene.run(Peers(answers), scene.damage(25), voters=("n1", "n2"))
    assert (list(repair.result.peers), scene.host.sound) == (["n2"], True)
    assert scene.host.log is not None
    assert scene.host.log.end_index == 79


@pytest.mark.rule("R-07")
def test_the_only_voter_removes_nothing_for_a_learner_with_another_history(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch_module, "PAUSE_LAST_MS", 1)
    scene = Scene()
    scene.learners = ("n3",)
    CheckpointFile(scene.files, f"{FOLDER}/checkpoint").save(Checkpoint(39))
    cause = scene.damage(25)
    held = {name: scene.files.read(f"{FOLDER}/{name}") for name in (*scene.segments, "manifest")}

    def answers(_peer: str, message: PeerCall) -> PeerCall | None:
        assert isinstance(message, FetchRequest)
        if len(peers.asked) > 8:
            repairs[0].give_up()
        return other_history(message)

    async def meanwhile(repair: LogRepair) -> None:
        repairs.append(repair)

    peers, repairs = Peers(answers), list[LogRepair]()
    scene.run(peers, cause, voters=("n1",), meanwhile=meanwhile)
    assert scene.host.log is None
    assert {name: scene.files.read(f"{FOLDER}/{name}") for name in held} == held
    assert RepairMarker(scene.files, "data", "log").keeps_promises


def holds(batches: Sequence[Batch]) -> Callable[[str, PeerCall], PeerCall]:
    """Peers that hold these batches durably, and do not know whether they are committed."""

    def answers(_peer: str, message: PeerCall) -> PeerCall:
        assert isinstance(message, FetchRequest)
        found = [
            batch
            for batch in batches
            if message.first_index <= batch.base_index and batch.last_index <= message.last_index
        ]
        return FetchAnswer(message.id, 0, 3, False, tuple(found) if message.held else ())

    return answers


@pytest.mark.rule("R-07")
def test_batches_that_the_chain_proves_need_not_be_committed() -> None:
    scene = Scene()
    CheckpointFile(scene.files, f"{FOLDER}/checkpoint").save(Checkpoint(3))
    scene.run(Peers(holds(BATCHES)), scene.damage(25))
    assert scene.host.sound is True
    assert scene.host.log is not None
    assert scene.host.log.batch_at(50) == BATCHES[25]
    assert scene.host.log.end_index == 79


def of_another_leader(position: int) -> Batch:
    """A batch of the same size in the place of another one."""
    before, batch = BATCHES[position - 1], BATCHES[position]
    records = RecordColumns()
    records.add(b"??")
    records.add(b"second")
    return stamp(
        encode_body(records),
        log_id=7,
        base_index=batch.base_index,
        term=1,
        timestamp_ms=1,
        offset=batch.offset,
        previous_chain=before.header.chain,
    )


@pytest.mark.rule("R-07")
def test_a_large_range_is_proved_in_pieces_before_any_of_it_is_written() -> None:
    scene = Scene()
    CheckpointFile(scene.files, f"{FOLDER}/checkpoint").save(Checkpoint(3))
    damage = scene.damage(25)
    for position in range(26, 30):
        scene.damage(position)
    held, answers = holds(BATCHES), list[int]()

    def in_pieces(peer: str, message: PeerCall) -> PeerCall:
        answer = held(peer, message)
        assert isinstance(answer, FetchAnswer)
        if not answer.batches:
            return answer
        answers.append(answer.batches[0].base_index)
        is_busy = len(answers) % 2 == 0
        return FetchAnswer(message.id, 0, 3, is_busy, () if is_busy else answer.batches[:2])

    scene.run(Peers(in_pieces), damage)
    assert answers == [50, 54, 54, 58, 58]
    assert scene.host.sound is True
    assert scene.host.log is not None
    assert [scene.host.log.batch_at(2 * position) for position in range(40)] == BATCHES


class Pieces:
    """Peers that hold these batches, and send one at a time, after `busy` answers without any."""

    def __init__(self, batches: Sequence[Batch], busy: int = 0) -> None:
        self.asked: list[int] = []
        self._answers = holds(batches)
        self._busy = busy

    def __call__(self, peer: str, message: PeerCall) -> PeerCall:
        answer = self._answers(peer, message)
        assert isinstance(answer, FetchAnswer)
        if not answer.batches:
            return answer
        self.asked.append(answer.batches[0].base_index)
        is_busy = len(self.asked) % (self._busy + 1) > 0
        return FetchAnswer(message.id, 0, 3, is_busy, () if is_busy else answer.batches[:1])


def damaged_in_pieces(scene: Scene) -> CorruptLog:
    CheckpointFile(scene.files, f"{FOLDER}/checkpoint").save(Checkpoint(3))
    damages = [scene.damage(position) for position in range(25, 30)]
    return damages[0]


@pytest.mark.rule("R-07")
def test_a_peer_may_reach_its_rate_limit_before_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other logs are repaired at the same time. A majority that never sends the range ends the log before
    it."""
    monkeypatch.setattr(proof, "_BUSY_PAUSE_S", 0)
    monkeypatch.setattr(fetch_module, "PAUSE_FIRST_MS", 0)
    scene = Scene()
    scene.run(Peers(Pieces(BATCHES, busy=30)), damaged_in_pieces(scene))
    assert scene.host.log is not None
    assert (scene.host.log.end_index, scene.host.sound) == (79, True)


def test_a_peer_with_another_history_sends_one_piece_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module, "PAUSE_FIRST_MS", 0)
    scene, pieces = Scene(), Pieces(history(40, salt="other"))
    scene.run(Peers(pieces), damaged_in_pieces(scene))
    assert pieces.asked == [50] * (2 * NOT_SETTLED_ROUNDS)


def test_no_piece_is_requested_of_a_range_that_is_too_large_to_be_proved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch_module, "PAUSE_FIRST_MS", 0)
    monkeypatch.setattr(proof, "PROOF_MAX_BYTES", 1_000)
    scene, pieces = Scene(), Pieces(BATCHES)
    scene.run(Peers(pieces), damaged_in_pieces(scene))
    assert pieces.asked == []


def test_a_repair_that_is_given_up_requests_no_further_piece() -> None:
    scene, pieces = Scene(), Pieces(BATCHES)

    async def meanwhile(repair: LogRepair) -> None:
        while not pieces.asked:  # noqa: ASYNC110  # bounded by Scene.run
            await asyncio.sleep(0)
        repair.give_up()

    scene.run(Peers(pieces), damaged_in_pieces(scene), meanwhile=meanwhile)
    assert pieces.asked == [50]


@pytest.mark.rule("R-07")
def test_the_begin_of_a_trimmed_log_is_proved_by_the_batch_after_it() -> None:
    scene = Scene()
    log = Commitlog.open(scene.files, FOLDER, log_id=7, config=SIZES)
    log.settle(79)
    ticket = log.start_trim(20)
    assert ticket is not None
    ticket.run()
    begin = log.begin_index // 2
    log.close()
    cause = scene.damage(begin)
    scene.run(Peers(holds(BATCHES)), cause)
    assert scene.host.sound is True
    assert scene.host.log is not None
    assert scene.host.log.batch_at(2 * begin) == BATCHES[begin]


@pytest.mark.rule("R-02", "R-07")
@pytest.mark.parametrize(
    ("term", "votes", "held", "is_taken"),
    [
        (1, True, BATCHES, True),
        (0, True, BATCHES, True),
        (2, True, BATCHES, False),  # a later leader may have replaced them here
        (1, False, BATCHES, False),  # epochs are no terms
        (1, True, BATCHES[:39], False),  # the rest may be committed, and have been here
    ],
)
def test_the_end_of_a_log_is_taken_from_a_peer_only_if_it_is_of_its_newest_term(
    term: int, votes: bool, held: Sequence[Batch], is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is in doubt in any case: what followed that end is unknown."""
    monkeypatch.setattr(fetch_module, "PAUSE_FIRST_MS", 0)
    monkeypatch.setattr(fetch_module, "NOT_SETTLED_ROUNDS", 2)
    scene = Scene()
    scene.votes = votes
    HardStateFile(scene.files, f"{FOLDER}/vote").save(HardState(term, "n2"))
    CheckpointFile(scene.files, f"{FOLDER}/checkpoint").save(Checkpoint(3))
    damage = scene.damage(38)
    scene.damage(39)
    scene.run(Peers(holds(held)), damage)
    assert scene.host.sound is False
    assert scene.host.log is not None
    assert scene.host.log.end_index == (79 if is_taken else 75)


@pytest.mark.rule("R-02", "R-07")
def test_a_part_of_the_end_of_a_log_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of a range that is too large may be committed, and have been here."""
    monkeypatch.setattr(fetch_module, "PAUSE_FIRST_MS", 0)
    monkeypatch.setattr(proof, "PROOF_MAX_BYTES", 1)
    scene = Scene()
    HardStateFile(scene.files, f"{FOLDER}/vote").save(HardState(1, "n2"))
    CheckpointFile(scene.files, f"{FOLDER}/checkpoint").save(Checkpoint(3))
    damage = scene.damage(38)
    scene.damage(39)
    pieces = Pieces(BATCHES)
    scene.run(Peers(pieces), damage)
    assert set(pieces.asked) == {76}
    assert scene.host.log is not None
    assert scene.host.log.end_index == 75


@pytest.mark.rule("R-07")
def test_the_end_of_a_log_is_not_taken_from_a_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log may have the same begin and be of a group that was restored from a backup."""
    monkeypatch.setattr(fetch_module, "PAUSE_FIRST_MS", 0)
    scene, held, asked = Scene(), holds(BATCHES), list[str]()
    scene.learners = ("n3",)
    HardStateFile(scene.files, f"{FOLDER}/vote").save(HardState(1, "n2"))
    CheckpointFile(scene.files, f"{FOLDER}/checkpoint").save(Checkpoint(3))

    def answers(peer: str, message: PeerCall) -> PeerCall:
        asked.append(peer)
        if len(asked) > 12:
            repairs[0].give_up()
        return held(peer, message) if peer == "n3" else FetchAnswer(message.id, NO_INDEX, NO_INDEX)

    async def meanwhile(repair: LogRepair) -> None:
        repairs.append(repair)

    repairs = list[LogRepair]()
    scene.run(Peers(answers), scene.damage(39), voters=("n1", "n2"), meanwhile=meanwhile)
    assert "n3" in asked
    assert scene.host.log is None


@pytest.mark.rule("R-07")
@pytest.mark.parametrize("case", ["other history", "a part", "no successor"])
def test_batches_that_the_chain_does_not_prove_are_not_taken(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "PAUSE_FIRST_MS", 0)
    monkeypatch.setattr(fetch_module, "NOT_SETTLED_ROUNDS", 2)
    assert of_another_leader(25).size_bytes == BATCHES[25].size_bytes
    scene = Scene()
    CheckpointFile(scene.files, f"{FOLDER}/checkpoint").save(Checkpoint(3))
    position = 39 if case == "no successor" else 25
    damage = scene.damage(position)
    scene.damage(26) if case == "a part" else None
    held = {
        "other history": [*BATCHES[:25], of_another_leader(25), *BATCHES[26:]],
        "a part": BATCHES[:26],
        "no successor": BATCHES,
    }
    scene.run(Peers(holds(held[case])), damage)
    assert scene.host.sound is False  # its end was removed, and is in doubt
    assert scene.host.log is not None
    assert scene.host.log.end_index == 2 * position - 1


@pytest.mark.rule("R-07")
def test_batches_that_are_not_settled_are_given_only_on_request() -> None:
    node = Node(committed=11)
    node.replica.sound = False
    assert node.ask(FetchRequest(1, 12, 19)) == FetchAnswer(1, -1, -1)
    assert node.ask(FetchRequest(1, 12, 19, held=True)) == FetchAnswer(1, 0, 19, False, tuple(BATCHES[6:10]))


def test_one_large_range_is_held_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "LARGE_BYTES", sum(batch.size_bytes for batch in BATCHES[:3]))
    asked: list[str] = []

    async def collect(log: str, collecting: asyncio.Lock) -> None:
        async def fetch(_peer: str, first_index: int, _last_index: int, *, held: bool) -> FetchAnswer:
            asked.append(log)
            return FetchAnswer(1, 0, 79, False, (BATCHES[first_index // 2],))

        def rest_after(rest: SimpleNamespace, batches: Sequence[Batch]) -> SimpleNamespace | None:
            index = batches[-1].next_index
            return None if index > rest.last_index else SimpleNamespace(**vars(rest) | {"first_index": index})

        whole: Any = SimpleNamespace(first_index=0, last_index=19, first_offset=0, next_offset=1)
        copy: Any = SimpleNamespace(rest_after=rest_after, proves=lambda *_, **__: True)
        replicas: Any = SimpleNamespace(fetch=fetch)
        found = await proof.proven(
            copy, replicas, "n2", whole, asyncio.sleep, voters=(), collecting=collecting
        )
        assert found == tuple(BATCHES[:10])

    async def both() -> None:
        collecting = asyncio.Lock()
        await asyncio.gather(collect("a", collecting), collect("b", collecting))

    asyncio.run(both())
    large = [log for place, log in enumerate(asked) if asked[:place].count(log) >= 3]
    assert large in (["a"] * 7 + ["b"] * 7, ["b"] * 7 + ["a"] * 7)
