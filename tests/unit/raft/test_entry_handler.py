"""The follower's entry handler, rule by rule: n1 is a leader that a test plays, n2 the follower."""

import pytest

from app.log.contract import NO_INDEX, Reset, TruncateAfter
from app.raft.config import RaftConfig
from app.raft.messages import Heartbeat, PushAnswer, PushCode, PushRequest, PushType
from storage.format.batch import Batch
from tests.unit.raft.support import Group, Member, MemoryLog, log_of


class Leader:
    """Plays n1: makes pushes of its log, and reads what n2 answers."""

    def __init__(self, log: MemoryLog, follower: MemoryLog, term: int = 5, committed: int = NO_INDEX) -> None:
        self.log = log
        self.term = term
        self.committed_index = committed
        self.session = 1
        self.syncs = False  # the log of the leader has the durability `fsync`
        self.group = Group(
            {"n1": MemoryLog(), "n2": follower, "n3": MemoryLog()}, raft=RaftConfig(max_waiting=4)
        )
        self.follower: Member = self.group["n2"]
        self.incarnation = self.follower.core._handler._incarnation

    def push(
        self,
        kind: PushType,
        index: int,
        *batches: Batch,
        reset: bool = False,
        term: int | None = None,
        leader_id: str = "n1",
        index_term: int | None = None,
    ) -> PushRequest:
        if index_term is None:
            index_term = self.log.term_at(index) if index >= max(self.log.begin_index, 0) else 0
        return PushRequest(
            self.term if term is None else term,
            kind,
            leader_id,
            self.committed_index,
            self.session,
            0 if kind is PushType.COMPARE else self.incarnation,
            index,
            index_term,
            self.log.begin_index,
            reset,
            self.syncs,
            batches,
        )

    def append(self, *indexes: int) -> list[PushAnswer]:
        """Push the batches that begin at `indexes`, together."""
        batches = [self.log.batch_at(index) for index in indexes]
        return self.send(self.push(PushType.APPEND, batches[0].base_index - 1, *batches))

    def compare(self, index: int) -> list[PushAnswer]:
        return self.send(self.push(PushType.COMPARE, index))

    def truncate(self, index: int, *, reset: bool = False) -> list[PushAnswer]:
        batch = self.log.batch_at(index)
        return self.send(self.push(PushType.TRUNCATE, batch.base_index - 1, batch, reset=reset))

    def commit(self, index: int) -> list[PushAnswer]:
        return self.send(self.push(PushType.COMMIT, index))

    def send(self, request: PushRequest, source: str = "n1") -> list[PushAnswer]:
        self.follower.step(source, request)
        return self.answers()

    def answers(self) -> list[PushAnswer]:
        found = self.group.take(source="n2", kind=PushAnswer)
        return [message for message in found if isinstance(message, PushAnswer)]

    def tick(self, ms: int) -> list[PushAnswer]:
        self.group.wait(ms)
        self.follower.core._restart_election_timer(self.group.now_ms)
        self.follower.tick()
        return self.answers()


def codes(answers: list[PushAnswer]) -> list[tuple[PushCode, int]]:
    return [(answer.code, answer.index) for answer in answers]


# --- COMPARE and COMMIT before appends ---


@pytest.mark.rule("D-15")
@pytest.mark.parametrize("kind", [PushType.COMPARE, PushType.TRUNCATE])
def test_compare_and_truncate_discard_the_appends_that_wait(kind: PushType) -> None:
    leader = Leader(log_of(1, 1, 1, 1), log_of(1))
    leader.compare(0)
    assert leader.append(2) == []
    leader.compare(0) if kind is PushType.COMPARE else leader.truncate(0)
    leader.append(1)
    assert leader.follower.log.end_index == 1  # 2 did not wait any more


@pytest.mark.rule("D-15")
def test_control_requests_do_not_wait_behind_early_appends() -> None:
    leader = Leader(log_of(1, 1, 1, 1), log_of(1), committed=0)
    leader.compare(0)
    leader.append(2)
    assert codes(leader.commit(0)) == [(PushCode.SUCCESS, 0)]
    assert leader.follower.core.committed_index == 0


@pytest.mark.rule("D-19")
def test_after_a_cut_the_same_indexes_are_acknowledged_again() -> None:
    """They are other records: their acknowledgement must not wait for the next COMMIT."""
    leader = Leader(log_of(1, 1, 1), log_of(1))
    leader.compare(0)
    assert codes(leader.append(1, 2)) == [(PushCode.SUCCESS, 2)]
    leader.log = log_of(1, 5, 5)
    leader.session += 1
    leader.truncate(0)
    assert codes(leader.append(1)) == [(PushCode.SUCCESS, 1)]


# --- D-16 to D-18: order ---


@pytest.mark.rule("D-16")
def test_appends_may_come_in_any_order() -> None:
    leader = Leader(log_of(1, 1, 1, 1), log_of(1))
    leader.compare(0)
    assert leader.append(3) == []
    assert leader.append(2) == []
    answers = leader.append(1)
    assert answers[-1].index == 3
    assert leader.follower.log.batches == leader.log.batches


@pytest.mark.rule("D-16")
def test_a_second_push_of_a_waiting_index_is_repeated_and_takes_its_place() -> None:
    leader = Leader(log_of(1, 1, 1, 1), log_of(1))
    leader.compare(0)
    leader.append(2)
    assert codes(leader.append(2, 3)) == [(PushCode.REPEATED_PUSH, 2)]
    leader.append(1)
    assert leader.follower.log.end_index == 3


@pytest.mark.rule("D-16")
def test_waiting_pushes_are_bounded() -> None:
    leader = Leader(log_of(*[1] * 9), log_of(1))
    leader.compare(0)
    for index in (2, 3, 4, 5):
        assert leader.append(index) == []
    assert codes(leader.append(6)) == [(PushCode.BUSY, 6)]


@pytest.mark.rule("D-17")
def test_records_held_already_succeed_when_equal_and_are_inconsistent_when_not() -> None:
    leader = Leader(log_of(1, 1, 2), log_of(1, 1, 1))
    leader.compare(1)
    assert codes(leader.append(1)) == [(PushCode.SUCCESS, 1)]
    assert codes(leader.append(2)) == [(PushCode.INCONSISTENT_STATE, 2)]
    assert leader.follower.log.terms == [1, 1, 1]


@pytest.mark.rule("D-17")
def test_a_push_that_is_held_in_part_is_stored_from_where_it_is_new() -> None:
    leader = Leader(log_of(1, 1, 1), log_of(1, 1))
    leader.compare(1)
    assert codes(leader.append(0, 1, 2)) == [(PushCode.SUCCESS, 2)]
    assert leader.follower.log.batches == leader.log.batches


@pytest.mark.rule("D-17")
def test_an_early_append_that_was_overtaken_is_answered_as_held() -> None:
    leader = Leader(log_of(1, 1, 1, 1), log_of(1))
    leader.compare(0)
    leader.append(2)
    leader.append(1, 2, 3)
    assert codes(leader.tick(1_000)) == [(PushCode.SUCCESS, 3)]


@pytest.mark.rule("D-18")
def test_the_smallest_early_append_is_inconsistent_after_its_timeout() -> None:
    leader = Leader(log_of(1, 1, 1, 1, 1), log_of(1))
    leader.compare(0)
    leader.append(4)
    leader.append(3)
    assert leader.tick(1_000) == []
    assert codes(leader.tick(900)) == []  # looked at once a second at most
    assert codes(leader.tick(200)) == [(PushCode.INCONSISTENT_STATE, 3)]


# --- D-19, D-20, R-12: committed index ---


@pytest.mark.rule("D-19")
def test_the_answer_to_an_append_comes_with_begin_and_end_and_then_the_committed_index_is_taken() -> None:
    leader = Leader(log_of(1, 1, 1), log_of(1), committed=2)
    leader.compare(0)
    [answer] = leader.append(1, 2)
    assert (answer.code, answer.begin_index, answer.end_index) == (PushCode.SUCCESS, 0, 2)
    assert leader.follower.core.committed_index == 2


@pytest.mark.rule("D-20", "R-12")
def test_the_committed_index_is_clamped_to_what_is_matched_with_this_leader() -> None:
    leader = Leader(log_of(1, 1, 5), log_of(1, 1, 2, 2), committed=2)
    leader.commit(NO_INDEX)
    assert leader.follower.core.committed_index == NO_INDEX
    leader.compare(1)
    assert leader.follower.core.committed_index == 1
    leader.truncate(1)
    leader.append(2)
    assert leader.follower.core.committed_index == 2


@pytest.mark.rule("R-12")
def test_a_new_term_starts_with_nothing_matched() -> None:
    leader = Leader(log_of(1, 1, 1), log_of(1, 1, 1))
    leader.compare(2)
    leader.term = 6
    leader.committed_index = 2
    leader.commit(NO_INDEX)
    assert leader.follower.core.committed_index == NO_INDEX
    leader.compare(2)
    assert leader.follower.core.committed_index == 2


@pytest.mark.rule("D-20")
def test_the_committed_index_never_moves_back_and_none_is_ignored() -> None:
    leader = Leader(log_of(1, 1, 1), log_of(1, 1, 1), committed=2)
    leader.compare(2)
    for committed in (NO_INDEX, 0, 2):
        leader.committed_index = committed
        leader.commit(2)
        assert leader.follower.core.committed_index == 2


@pytest.mark.rule("D-20")
def test_an_older_terms_committed_index_is_ignored() -> None:
    leader = Leader(log_of(1, 1, 1), log_of(1, 1, 1))
    leader.compare(2)
    leader.committed_index = 2
    leader.send(leader.push(PushType.COMMIT, 2, term=4))
    assert leader.follower.core.committed_index == NO_INDEX


@pytest.mark.rule("D-20")
def test_the_committed_index_is_never_below_begin() -> None:
    held = log_of(1, 1, 1, 1)
    held.trim(2)
    leader = Leader(log_of(1, 1, 1, 1), held, committed=0)
    assert leader.follower.core.committed_index == 1  # what was trimmed was committed
    leader.compare(3)
    assert leader.follower.core.committed_index == 1
    leader.committed_index = 2
    leader.commit(3)
    assert leader.follower.core.committed_index == 2


# --- D-21: who may push ---


@pytest.mark.rule("D-21")
@pytest.mark.parametrize("kind", list(PushType))
def test_a_push_of_an_older_term_or_a_second_leader_changes_nothing(kind: PushType) -> None:
    theirs = log_of(1, 1, 1)
    leader = Leader(log_of(1, 1, 2, 2), theirs, committed=1)
    leader.compare(1)
    before = list(leader.follower.log.batches)
    batches = {
        PushType.TRUNCATE: (leader.log.batch_at(0),),
        PushType.APPEND: (leader.log.batch_at(2), leader.log.batch_at(3)),
    }.get(kind, ())
    index = batches[0].base_index - 1 if batches else 3
    leader.committed_index = 3
    [answer] = leader.send(leader.push(kind, index, *batches, term=4))
    assert (answer.code, answer.term) == (PushCode.REFUSED, 5)
    [answer] = leader.send(leader.push(kind, index, *batches, leader_id="n3"), source="n3")
    assert answer.code is PushCode.REFUSED
    [answer] = leader.send(leader.push(kind, index, *batches, leader_id="n1"), source="n3")  # an impostor
    assert answer.code is PushCode.REFUSED
    assert leader.follower.log.batches == before
    assert leader.follower.core.committed_index == 1


@pytest.mark.rule("D-21", "R-01")
def test_a_newer_term_is_adopted_and_saved_before_anything_else() -> None:
    leader = Leader(log_of(1, 1), log_of(1), term=9)
    leader.compare(0)
    assert leader.follower.saved[-1].term == 9
    assert leader.follower.core.leader_id == "n1"
    ready = leader.follower.readies[-1]
    assert ready.hard_state is not None or leader.follower.readies[-2].hard_state is not None


# --- D-14, R-07, R-06: TRUNCATE ---


@pytest.mark.rule("D-14")
def test_truncate_removes_everything_past_its_index() -> None:
    leader = Leader(log_of(1, 1), log_of(1, 1, 2, 2))
    leader.compare(1)
    [answer] = leader.truncate(1)
    assert (answer.code, answer.end_index) == (PushCode.SUCCESS, 1)
    assert leader.follower.log.truncations == [TruncateAfter(1)]


@pytest.mark.rule("D-14")
def test_truncate_stores_the_carried_batch_where_it_lacks_it_or_holds_another() -> None:
    for theirs in (log_of(1, 1), log_of(1, 1, 2, 2)):
        leader = Leader(log_of(1, 1, 3), theirs)
        leader.compare(1)
        [answer] = leader.truncate(2)
        assert (answer.code, answer.end_index) == (PushCode.SUCCESS, 2)
        assert leader.follower.log.batches == leader.log.batches


@pytest.mark.rule("D-14", "R-06")
def test_truncate_stores_nothing_on_a_prefix_that_is_not_the_leaders() -> None:
    leader = Leader(log_of(1, 3, 4), log_of(1, 2, 2))
    leader.compare(0)
    [answer] = leader.truncate(2)
    assert answer.code is PushCode.INCONSISTENT_STATE
    assert leader.follower.log.terms == [1, 2, 2]


@pytest.mark.rule("D-14")
def test_a_reset_makes_the_carried_batch_the_first_of_an_emptied_log() -> None:
    ours = log_of(1, 1, 3, 3)
    ours.trim(2)
    leader = Leader(ours, log_of(1))
    leader.compare(3)
    [answer] = leader.truncate(2, reset=True)
    log = leader.follower.log
    assert (answer.code, answer.end_index) == (PushCode.SUCCESS, 2)
    assert (log.begin_index, log.batches) == (2, ours.batches[:1])
    assert log.truncations == [Reset(2, ours.batches[0].offset, 3)]


@pytest.mark.rule("R-07")
def test_truncate_below_the_committed_index_is_refused_loudly_and_changes_nothing() -> None:
    leader = Leader(log_of(1, 1, 1), log_of(1, 1, 1), committed=2)
    leader.compare(2)
    [answer] = leader.truncate(1)
    assert answer.code is PushCode.REFUSED
    assert leader.follower.log.end_index == 2
    [event] = [event for event in leader.follower.events if event.kind == "truncate"]
    assert event.data["refused"] is True


@pytest.mark.rule("R-07")
def test_truncate_at_the_committed_index_is_the_normal_repair() -> None:
    leader = Leader(log_of(1, 1, 5), log_of(1, 1, 2, 2), committed=1)
    leader.compare(1)
    [answer] = leader.truncate(1)
    assert (answer.code, leader.follower.log.end_index) == (PushCode.SUCCESS, 1)


@pytest.mark.rule("R-07")
def test_truncate_that_would_replace_a_committed_batch_is_refused() -> None:
    leader = Leader(log_of(1, 1, 4), log_of(1, 1, 2), committed=1)
    leader.compare(1)
    leader.follower.core._member.committed_index = 2
    [answer] = leader.truncate(2)
    assert answer.code is PushCode.REFUSED
    assert leader.follower.log.terms == [1, 1, 2]


@pytest.mark.rule("R-07")
@pytest.mark.parametrize(
    ("committed", "leader_begin", "allowed"),
    [(NO_INDEX, 0, True), (1, 2, True), (2, 2, False), (3, 2, False)],
)
def test_a_reset_is_allowed_only_past_what_is_committed(
    committed: int, leader_begin: int, allowed: bool
) -> None:
    ours = log_of(3, 3, 3, 3)
    ours.trim(leader_begin)
    leader = Leader(ours, log_of(1, 1, 1, 1))
    leader.compare(3)
    leader.follower.core._member.committed_index = committed
    [answer] = leader.truncate(leader_begin, reset=True)
    assert answer.code is (PushCode.SUCCESS if allowed else PushCode.REFUSED)
    assert leader.follower.log.terms == ([3] if allowed else [1, 1, 1, 1])


@pytest.mark.rule("R-06")
def test_an_append_is_accepted_only_behind_the_record_that_it_names() -> None:
    leader = Leader(log_of(1, 2, 2), log_of(1, 1))
    assert codes(leader.append(2)) == [(PushCode.INCONSISTENT_STATE, 2)]
    assert leader.follower.log.terms == [1, 1]


# --- D-13: the answer to COMPARE ---


@pytest.mark.rule("D-13")
def test_the_answer_to_compare_names_the_last_index_that_may_still_agree() -> None:
    leader = Leader(log_of(1, 1, 2, 2, 2, 5), log_of(1, 1, 3, 3, 3, 3, 3))
    [answer] = leader.compare(4)
    assert answer.code is PushCode.INCONSISTENT_STATE
    assert (answer.conflict_term, answer.conflict_index) == (1, 1)
    [answer] = leader.compare(5)
    assert (answer.conflict_term, answer.conflict_index) == (3, 5)


@pytest.mark.rule("D-13")
def test_with_nothing_that_may_agree_the_answer_names_no_index() -> None:
    leader = Leader(log_of(1, 1), log_of(3, 3))
    [answer] = leader.compare(1)
    assert (answer.conflict_term, answer.conflict_index) == (0, NO_INDEX)


@pytest.mark.rule("R-02")
def test_a_doubt_ends_also_for_a_follower_that_lags_under_constant_load() -> None:
    """No later commit of this leader counts an acknowledgement of an earlier incarnation."""
    leader = Leader(log_of(*[5] * 12), log_of(5), committed=3)
    leader.compare(0)
    handler = leader.follower.core._handler
    ends = []
    for index in range(1, 9):
        leader.append(index)
        leader.committed_index += 1  # the others hold three records more
        if handler.holds_all_committed:
            ends.append(index)
    assert ends == [3, 4, 5, 6, 7, 8]
    leader.term = 6  # another leader: what its term has committed is unknown
    leader.committed_index = 11
    leader.follower.step("n1", Heartbeat(6, "n1", 11, 1))
    assert not handler.holds_all_committed
