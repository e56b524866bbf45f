"""Keys, producers and the fence follow the log, and go back with it exactly."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import ProducerFenced, SequenceGap
from app.log.claims import PARTITIONS
from app.log.recorded_values import LogCursor, SyncFloor
from app.log.state import (
    DAY_MS,
    EXPIRED_PARTITIONS,
    NOTES,
    Claim,
    LogState,
)
from storage.format.batch import FIRST_CHAIN, AppendMark, Batch, stamp
from storage.format.records import RecordColumns, encode_body, encode_control

NOW = 1_000_000
DIGEST = bytes(range(16))
NODES = ["n1", "n2", "n3", "n4"]


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
    assert state.find_key("other") is None
    assert state.find_key("k") == Claim(5, 6, 3, batch.offset, batch.next_offset, NOW, DIGEST)
    assert state.applied_index == 7


def expire(state: LogState) -> None:
    """Remove everything that has expired."""
    for _ in range(PARTITIONS // EXPIRED_PARTITIONS):
        state.expire()


def test_a_key_is_kept_a_day_and_then_free() -> None:
    log, state = Log(), LogState()
    state.pass_time(5)
    state.apply(log.add(AppendMark(0, 1, "k", digest=DIGEST), producer_mark("p", 0, 0, ordinal=1)))
    state.committed(3)
    noted = 5 + DAY_MS // NOTES + 1
    state.pass_time(noted)
    state.pass_time(noted + DAY_MS - 1)
    expire(state)
    assert state.find_key("k") is not None
    assert (state.key_count, state.producer_count) == (1, 1)
    with pytest.raises(SequenceGap):
        state.check_producer("p", 0, 7)
    state.pass_time(noted + DAY_MS)
    assert state.find_key("k") is None
    expire(state)
    assert (state.key_count, state.producer_count) == (0, 0)
    assert state.check_producer("p", 0, 7) is None


def test_one_call_removes_a_part_of_what_has_expired() -> None:
    """A day ends for a million keys at once, and the loop has other work."""
    log, state = Log(), LogState()
    count = 2 * PARTITIONS
    for start in range(0, count, 1_000):
        marks = [AppendMark(k, 1, f"k{start + k}", digest=DIGEST) for k in range(min(1_000, count - start))]
        state.apply(log.add(*marks, count=len(marks)))
    state.committed(count)
    state.pass_time(5)
    state.pass_time(5 + DAY_MS // NOTES + 1)
    state.pass_time(5 + 2 * DAY_MS)
    state.expire()
    removed = count - state.key_count
    assert 0 < removed < 2 * count * EXPIRED_PARTITIONS // PARTITIONS
    expire(state)
    assert state.key_count == 0


def test_no_timestamp_makes_a_key_expire() -> None:
    """Neither a leader's clock that is a day ahead, nor one that is a day late."""
    log, state = Log(), LogState()
    state.apply(log.add(AppendMark(0, 1, "k", digest=DIGEST)))
    state.apply(log.add(AppendMark(0, 1, "ahead", digest=DIGEST), timestamp_ms=NOW + 2 * DAY_MS))
    state.apply(log.add(AppendMark(0, 1, "late", digest=DIGEST), timestamp_ms=0))
    state.committed(11)
    state.pass_time(1_000_000)
    state.pass_time(1_060_000)
    expire(state)
    assert all(state.find_key(key) is not None for key in ("k", "ahead", "late"))


def test_uncommitted_state_does_not_expire() -> None:
    log, state = Log(), LogState(idempotency_ms=10)
    state.apply(log.add(AppendMark(0, 1, "k", digest=DIGEST)))
    for now_ms in (0, 1_000):
        state.pass_time(now_ms)
    assert state.find_key("k") is not None
    state.committed(3)
    for now_ms in (1_001, 2_001):
        state.pass_time(now_ms)
    assert state.find_key("k") is None


def test_time_counts_over_a_restart_and_not_while_nothing_runs() -> None:
    log, state = Log(), LogState(idempotency_ms=1_000)
    state.apply(log.add(AppendMark(0, 1, "k", digest=DIGEST)))
    state.committed(3)
    state.pass_time(50_000)
    state.pass_time(50_600)
    state = LogState.restore(state.snapshot(), idempotency_ms=1_000)
    state.pass_time(7)  # another process, another monotonic clock
    state.pass_time(406)
    assert state.find_key("k") is not None
    state.pass_time(407)
    assert state.find_key("k") is None


def test_a_key_used_again_after_its_time_claims_the_new_append() -> None:
    log, state = Log(), LogState(idempotency_ms=10)
    state.apply(log.add(AppendMark(0, 1, "k", digest=DIGEST)))
    state.committed(3)
    state.pass_time(0)
    state.pass_time(10)
    assert state.find_key("k") is None
    state.apply(log.add(AppendMark(0, 1, "k", digest=b"new".ljust(16))))
    state.apply(log.add(AppendMark(0, 1, "k", digest=b"newest".ljust(16))))  # a leader that forgot it sooner
    claim = state.find_key("k")
    assert claim is not None
    assert claim.digest == b"newest".ljust(16)
    state.truncate_after(7)
    claim = state.find_key("k")
    assert claim is not None
    assert claim.digest == b"new".ljust(16)
    expire(state)
    assert state.key_count == 1


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


@pytest.mark.rule("D-28")
@pytest.mark.parametrize("first", [0, 2, 5])
def test_a_producer_whose_leader_had_forgotten_it_counts_again(first: int) -> None:
    """A replica whose running time is shorter, or that has read its log again, still remembers it. A repeat
    gets the answer of the newest append with its sequence, as at that leader."""
    log, state = Log(), LogState()
    for sequence in (*range(1, 6), first):
        state.apply(log.add(producer_mark("p", 0, sequence)))
    claim = state.check_producer("p", 0, first)
    assert claim is not None
    assert claim.first_index == 4 * 5
    assert state.check_producer("p", 0, first + 1) is None
    for sequence in {1, 2, 3, 4, 5, 8} - {first, first + 1}:
        with pytest.raises(SequenceGap) as gap:
            state.check_producer("p", 0, sequence)
        assert gap.value.expected_sequence == first + 1
    state.truncate_after(4 * 5 - 1)
    claim = state.check_producer("p", 0, 5)
    assert claim is not None
    assert claim.first_index == 4 * 4


def test_a_newer_epoch_fences_the_older_and_counts_again() -> None:
    log, state = Log(), LogState()
    state.apply(log.add(producer_mark("p", 2, 50)))
    for epoch, first in ((3, 0), (4, 70)):
        assert state.check_producer("p", epoch, first) is None
        state.apply(log.add(producer_mark("p", epoch, first)))
        with pytest.raises(ProducerFenced) as fenced:
            state.check_producer("p", epoch - 1, 51)
        assert fenced.value.current_epoch == epoch
        with pytest.raises(SequenceGap):
            state.check_producer("p", epoch, 50)
        assert state.check_producer("p", epoch, first + 1) is None


def test_the_fence_holds_until_it_is_lifted() -> None:
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


@pytest.mark.rule("R-10")
def test_the_membership_before_the_last_is_known_until_the_last_is_committed() -> None:
    """Each change begins when the one before is committed, whether this replica has heard of that or not."""
    log, state = Log(), LogState()
    for count in (2, 3, 4):
        value = {"kind": "membership", "voters": NODES[:count], "learners": [], "nodes": {}}
        state.apply(log.add(control=value))
    assert state.settled_membership is None
    assert state.replaced_membership is not None
    assert state.replaced_membership.voters == ("n1", "n2", "n3")
    state.truncate_after(0)
    assert state.replaced_membership is None
    state.committed(0)
    assert state.replaced_membership == state.membership


@pytest.mark.rule("R-07")
def test_committed_records_are_not_taken_back() -> None:
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

    keys = [state.find_key(f"k{k}") for k in range(6)]
    producers = [
        ask(lambda p=p, e=e, s=s, g=g: state.check_producer(f"p{p}", e, s, g))  # type: ignore[misc]
        for p in range(3)
        for e in range(3)
        for s in range(9)
        for g in (False, True)
    ]
    schemas = [*state.schemas.versions, state.schemas.size_bytes]
    log = [state.applied_index, state.fencing_token, state.data_end, state.trim_index]
    return [*log, keys, producers, schemas]


def schema_record(version: int) -> dict[str, Any]:
    return {"kind": "schema", "version": version, "format": "json", "definition": "a int, b string"}


def random_log(chance: Random, log: Log, size: int) -> None:
    for _ in range(size):
        kind = chance.random()
        if kind < 0.15:
            log.add(control={"kind": "fence", "token": chance.choice([None, "a", "b"])})
            continue
        if kind < 0.25:
            log.add(control=schema_record(chance.randrange(9)))
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
def test_noise_is_not_a_snapshot(data: bytes) -> None:
    with pytest.raises(ValueError, match="snapshot"):
        LogState.restore(data)


@pytest.mark.rule("D-12")
def test_a_trim_goes_with_its_record() -> None:
    """A trim that was never committed removes nothing, also when another record is committed in its place."""
    log, state = Log(), LogState()
    state.apply(log.add(count=1))
    state.committed(0)
    state.apply(log.add(control={"kind": "trim", "until_index": 1}))
    state.truncate_after(0)
    log.batches.pop()
    state.apply(log.add(count=1, term=2))
    state.committed(1)
    assert state.trim_index == 0


def test_readers_get_the_cursor_that_is_committed() -> None:
    log, state = Log(), LogState()

    def move(index: int | None) -> None:
        state.apply(log.add(control={"kind": "cursor", "name": "etl", "index": index, "fence": False}))

    move(5)
    assert state.cursors["etl"].position == 5
    assert state.committed_cursor("etl") is None
    state.committed(0)
    for index in (7, 9, None, 4):
        move(index)
    held = state.committed_cursor("etl")
    assert (held, state.cursors["etl"].position) == (LogCursor(5, False, 0), 4)
    state.committed(2)
    assert state.committed_cursor("etl") == LogCursor(9, False, 2)
    state.committed(3)
    assert state.committed_cursor("etl") is None
    state.committed(4)
    assert state.committed_cursor("etl") == LogCursor(4, False, 4)
    assert state.committed_cursor("other") is None


def test_the_lag_counts_from_the_first_fence_to_the_last_data_record() -> None:
    log, state = Log(), LogState()

    def cursor(name: str, index: int | None, *, fence: bool = True) -> None:
        state.apply(log.add(control={"kind": "cursor", "name": name, "index": index, "fence": fence}))

    state.apply(log.add(count=10))
    cursor("reader", 0, fence=False)
    assert state.fence_lag is None
    cursor("tables", 4)
    cursor("archive", 7)
    assert state.fence_lag == 6  # without the control records at the end
    cursor("tables", 10)
    assert state.fence_lag == 3
    cursor("archive", 12)
    cursor("tables", 12)
    assert state.fence_lag == 0  # both are after the last data record
    state.apply(log.add(count=2))
    assert state.fence_lag == log.batches[-1].next_index - 12


def test_a_cursor_keeps_who_moved_it_also_in_a_snapshot() -> None:
    log, state = Log(), LogState()
    for holder in ({"holder": "a"}, {}, {"holder": "b"}):
        state.apply(log.add(control={"kind": "cursor", "name": "etl", "index": 4, "fence": True, **holder}))
    state.committed(0)
    restored = LogState.restore(state.snapshot())
    assert restored.committed_cursor("etl") == LogCursor(4, True, 0, "a")
    assert restored.cursors["etl"] == LogCursor(4, True, 2, "b")
    restored.truncate_after(1)
    assert restored.cursors["etl"] == LogCursor(4, True, 1)


def test_a_schema_goes_with_its_record_and_readers_get_what_they_may_see() -> None:
    log, state = Log(), LogState()
    state.apply(log.add(count=5))
    assert state.schema_version(4) == 0
    assert state.schema_version(5) is None  # not applied yet
    for version in (1, 2):
        state.apply(log.add(control=schema_record(version)))
        state.apply(log.add(count=2))
    state.committed(7)
    assert [state.schema_version(index) for index in (4, 5, 7, 8, 10)] == [0, 1, 1, 2, 2]
    state = LogState.restore(state.snapshot())
    assert (len(state.schemas), state.schemas.size_bytes) == (2, 2 * len("a int, b string"))
    state.truncate_after(7)
    assert [each.version for each in state.schemas.versions] == [1]
    assert state.schemas.size_bytes == len("a int, b string")


def test_the_acknowledgements_of_a_classic_epoch_are_kept_with_the_log() -> None:
    log, state = Log(), LogState()
    state.apply(log.add(control={"kind": "term", "leader": "n1"}))
    assert state.sync_floor is None
    state.apply(log.add(control={"kind": "term", "leader": "n1", "sync_slaves": 1, "slaves": 2}))
    state.apply(log.add(count=1))
    assert state.sync_floor == SyncFloor(1, 1, 2)
    assert LogState.restore(state.snapshot()).sync_floor == SyncFloor(1, 1, 2)
    state.truncate_after(1)
    assert state.sync_floor == SyncFloor(1, 1, 2)
    state.truncate_after(0)
    assert state.sync_floor is None  # also if the record before it stated something: nothing is known
