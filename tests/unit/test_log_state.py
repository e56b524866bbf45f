"""Keys, producers and the fence follow the log, and go back with it exactly."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.log_state import DAY_MS, Claim, LogState, ProducerFenced, SequenceGap
from storage.batch import FIRST_CHAIN, AppendMark, Batch, stamp
from storage.records import RecordColumns, encode_body, encode_control

NOW = 1_000_000
DIGEST = bytes(range(16))


class Log:
    """Batches one after the other, as a leader stamps them."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def add(
        self,
        *marks: AppendMark,
        control: dict[str, Any] | None = None,
        timestamp_ms: int = NOW,
        count: int = 4,
        term: int = 1,
    ) -> Batch:
        last = self.batches[-1] if self.batches else None
        records = RecordColumns()
        for _ in range(count):
            records.add(b"v")
        batch = stamp(
            encode_body(records) if control is None else encode_control(control),
            log_id=1,
            base_index=last.next_index if last else 0,
            term=term,
            timestamp_ms=timestamp_ms,
            offset=last.next_offset if last else 0,
            previous_chain=last.header.chain if last else FIRST_CHAIN,
            control=control is not None,
            marks=marks,
        )
        self.batches.append(batch)
        return batch


def producer_mark(id: str, epoch: int, sequence: int, ordinal: int = 0, count: int = 1) -> AppendMark:
    return AppendMark(ordinal, count, None, id, epoch, sequence, digest=DIGEST)


def test_a_key_gives_the_first_answer_back() -> None:
    log, state = Log(), LogState()
    log.add()
    batch = log.add(AppendMark(1, 2, "k", digest=DIGEST), term=3)
    for each in log.batches:
        state.apply(each)
    assert state.find_key("other", NOW) is None
    assert state.find_key("k", NOW) == Claim(5, 6, 3, batch.offset, batch.next_offset, NOW, DIGEST)
    assert state.applied_index == 7


def test_a_key_is_kept_a_day_and_then_free() -> None:
    log, state = Log(), LogState()
    state.apply(log.add(AppendMark(0, 1, "k", digest=DIGEST), producer_mark("p", 0, 0, ordinal=1)))
    state.committed(3)
    state.expire(NOW + DAY_MS)
    assert state.find_key("k", NOW + DAY_MS) is not None
    assert state.find_key("k", NOW + DAY_MS + 1) is None
    with pytest.raises(SequenceGap):
        state.check_producer("p", 0, 7)
    state.expire(NOW + DAY_MS + 1)
    assert state.find_key("k", NOW) is None
    assert state.check_producer("p", 0, 7) is None


def test_what_is_not_committed_does_not_expire() -> None:
    log, state = Log(), LogState(idempotency_ms=10)
    state.apply(log.add(AppendMark(0, 1, "k", digest=DIGEST)))
    state.expire(NOW + 1_000)
    assert state.find_key("k", NOW) is not None
    state.committed(3)
    state.expire(NOW + 1_000)
    assert state.find_key("k", NOW) is None


def test_a_key_used_again_after_its_time_claims_the_new_append() -> None:
    log, state = Log(), LogState(idempotency_ms=10)
    state.apply(log.add(AppendMark(0, 1, "k", digest=DIGEST)))
    state.apply(log.add(AppendMark(0, 1, "young", digest=DIGEST), timestamp_ms=NOW + 15))
    state.apply(log.add(AppendMark(0, 1, "k", digest=b"new"), timestamp_ms=NOW + 20))
    state.committed(11)
    state.expire(NOW + 28)
    claim = state.find_key("k", NOW + 28)
    assert claim is not None
    assert claim.digest == b"new"
    assert state.find_key("young", NOW) is None


def test_sequences_of_a_producer() -> None:
    log, state = Log(), LogState()
    assert state.check_producer("p", 0, 17) is None  # the first may be any
    for sequence in range(17, 27):
        assert state.check_producer("p", 0, sequence) is None
        state.apply(log.add(producer_mark("p", 0, sequence)))
    for sequence in range(22, 27):  # the last five
        claim = state.check_producer("p", 0, sequence)
        assert claim is not None
        assert claim.first_index == 4 * (sequence - 17)
    assert state.check_producer("p", 0, 27) is None
    assert state.check_producer("p", 0, 40, allow_gap=True) is None
    for sequence, allow_gap in ((28, False), (21, False), (0, False), (21, True)):
        with pytest.raises(SequenceGap) as gap:
            state.check_producer("p", 0, sequence, allow_gap)
        assert gap.value.expected_sequence == 27
    assert state.check_producer("q", 0, 5) is None


def test_a_newer_epoch_fences_the_older_and_counts_anew() -> None:
    log, state = Log(), LogState()
    state.apply(log.add(producer_mark("p", 2, 50)))
    assert state.check_producer("p", 3, 0) is None
    state.apply(log.add(producer_mark("p", 3, 0)))
    with pytest.raises(ProducerFenced) as fenced:
        state.check_producer("p", 2, 51)
    assert fenced.value.epoch == 3
    with pytest.raises(SequenceGap):
        state.check_producer("p", 3, 50)
    assert state.check_producer("p", 3, 1) is None


def test_the_fence_stands_until_it_is_lifted() -> None:
    log, state = Log(), LogState()
    state.apply(log.add(control={"kind": "term", "leader": "n1"}))
    assert state.fencing_token is None
    state.apply(log.add(control={"kind": "fence", "token": "w-a"}))
    assert state.fencing_token == "w-a"
    state.apply(log.add(control={"kind": "fence", "token": None}))
    assert state.fencing_token is None
    state.truncate_after(1)
    assert state.fencing_token == "w-a"
    state.truncate_after(0)
    assert state.fencing_token is None


@pytest.mark.rule("R-10")
def test_a_membership_goes_with_its_record() -> None:
    log, state = Log(), LogState()
    for voters in (["n1", "n2"], ["n1", "n2", "n3"]):
        value = {"kind": "membership", "voters": voters, "learners": [], "nodes": {}}
        state.apply(log.add(control=value))
    assert state.membership is not None
    assert (state.membership.voters, state.membership.since) == (("n1", "n2", "n3"), 1)
    state.truncate_after(0)
    assert state.membership is not None
    assert state.membership.voters == ("n1", "n2")
    state.truncate_after(-1)
    assert state.membership is None


@pytest.mark.rule("R-07")
def test_what_is_committed_is_not_taken_back() -> None:
    log, state = Log(), LogState()
    for _ in range(3):
        state.apply(log.add())
    state.committed(7)
    with pytest.raises(ValueError, match="committed"):
        state.truncate_after(3)
    state.truncate_after(7)
    state.truncate_after(100)
    assert state.applied_index == 7


def answers(state: LogState) -> list[Any]:
    """Everything that can be asked of the state."""

    def ask(question: Callable[[], Any]) -> Any:
        try:
            return question()
        except (SequenceGap, ProducerFenced) as refusal:
            return repr(refusal)

    keys = [state.find_key(f"k{k}", NOW) for k in range(6)]
    producers = [
        ask(lambda p=p, e=e, s=s, g=g: state.check_producer(f"p{p}", e, s, g))  # type: ignore[misc]
        for p in range(3)
        for e in range(3)
        for s in range(9)
        for g in (False, True)
    ]
    return [state.applied_index, state.fencing_token, keys, producers]


def random_log(chance: Random, log: Log, size: int) -> None:
    for _ in range(size):
        kind = chance.random()
        if kind < 0.15:
            log.add(control={"kind": "fence", "token": chance.choice([None, "a", "b"])})
            continue
        marks = []
        for ordinal in range(chance.randrange(4)):
            key = f"k{chance.randrange(6)}" if chance.random() < 0.6 else None
            if chance.random() < 0.5:
                name, epoch, sequence = f"p{chance.randrange(3)}", chance.randrange(3), chance.randrange(9)
                marks.append(AppendMark(ordinal, 1, key, name, epoch, sequence, digest=chance.randbytes(16)))
            elif key is not None:
                marks.append(AppendMark(ordinal, 1, key, digest=chance.randbytes(16)))
        log.add(*marks)


def replay(batches: list[Batch]) -> LogState:
    state = LogState()
    for batch in batches:
        state.apply(batch)
    return state


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.data())
def test_taking_back_is_never_having_seen(seed: int, data: st.DataObject) -> None:
    """Cuts, commits and restarts in any order: the state is that of a replay of what is left."""
    chance, log, state = Random(seed), Log(), LogState()
    for _ in range(data.draw(st.integers(1, 6))):
        before = len(log.batches)
        random_log(chance, log, chance.randrange(8))
        for batch in log.batches[before:]:
            state.apply(batch)
        if chance.random() < 0.3 and log.batches:
            state.committed(chance.choice(log.batches).last_index)
        if chance.random() < 0.3:
            state = LogState.restore(state.snapshot())
        if chance.random() < 0.6:
            least = sum(batch.last_index <= state.committed_index for batch in log.batches)
            keep = chance.randint(least, len(log.batches))
            del log.batches[keep:]
            state.truncate_after(log.batches[-1].last_index if log.batches else -1)
        assert answers(state) == answers(replay(log.batches))


def test_a_snapshot_is_the_same_bytes_for_the_same_log() -> None:
    log = Log()
    random_log(Random(7), log, 50)
    assert replay(log.batches).snapshot() == replay(log.batches).snapshot()
    state = LogState.restore(replay(log.batches).snapshot())
    assert state.snapshot() == replay(log.batches).snapshot()


@pytest.mark.parametrize("data", [b"", b"\x90", b"\x93\x01\x02", b"noise", b"\xc0"])
def test_noise_is_no_snapshot(data: bytes) -> None:
    with pytest.raises(ValueError, match="snapshot"):
        LogState.restore(data)
