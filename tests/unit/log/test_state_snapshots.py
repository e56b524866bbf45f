"""Snapshots of the state of a log: of one moment, whole, and readable by later versions."""

import gc
import struct
from random import Random

import msgspec
import pytest

from app.log.recorded_values import LogCursor
from app.log.snapshot import Frames
from app.log.state import (
    Claim,
    LogState,
)
from storage.format.batch import AppendMark
from tests.unit.log.test_state import DIGEST, NOW, Log, answers, expire, producer_mark, random_log, replay


@pytest.mark.parametrize("missing", [1, 2])
def test_a_snapshot_whose_head_has_fewer_fields_is_read(missing: int) -> None:
    """An earlier version stored it."""
    state = LogState()
    state.apply(Log().add(count=3))
    frames = Frames()
    [(_, head), *_] = frames.feed(state.snapshot())
    fields = msgspec.msgpack.decode(head)
    earlier = msgspec.msgpack.encode(fields[:-missing])
    snapshot = state.snapshot().replace(
        struct.pack("<I", len(head)) + b"\x01" + head, struct.pack("<I", len(earlier)) + b"\x01" + earlier
    )
    restored = LogState.restore(snapshot)
    assert (fields[-2:], restored.applied_index, len(restored.schemas)) == ([[], None], 2, 0)


def test_data_ends_after_the_last_data_record() -> None:
    log, state = Log(), LogState()
    assert state.data_end == 0
    state.apply(log.add(control={"kind": "fence", "token": "a"}))
    assert state.data_end == 0
    state.apply(log.add(count=3))
    state.apply(log.add(control={"kind": "fence", "token": None}))
    assert state.data_end == 4
    state.committed(4)
    state.apply(log.add(count=2))
    state.apply(log.add(control={"kind": "fence", "token": "b"}))
    assert LogState.restore(state.snapshot()).data_end == state.data_end == 7
    state.truncate_after(4)
    assert LogState.restore(state.snapshot()).data_end == state.data_end == 4


def test_one_record_after_the_truncation_does_not_count_as_data() -> None:
    """Otherwise an append that requires the index after the truncation would be refused."""
    log, state = Log(), LogState()
    state.apply(log.add(count=2))
    state.apply(log.add(count=1))
    state.truncate_after(1)
    assert state.data_end == 2


def test_a_trim_that_was_not_committed_at_the_snapshot_is_carried_out_after_it() -> None:
    log, state = Log(), LogState()
    state.apply(log.add(count=5))
    state.apply(log.add(control={"kind": "trim", "until_index": 3}))
    restored = LogState.restore(state.snapshot())
    assert (restored.trim_index, restored.logged_trim_index) == (0, 3)
    restored.committed(5)
    assert restored.trim_index == 3
    undone = LogState.restore(state.snapshot())
    undone.truncate_after(4)
    undone.committed(9)
    assert (undone.trim_index, undone.logged_trim_index) == (0, 0)


def test_keys_that_had_expired_at_the_snapshot_are_removed_after_it() -> None:
    log, state = Log(), LogState(idempotency_ms=10)
    state.apply(log.add(AppendMark(0, 1, "k", digest=DIGEST), producer_mark("p", 0, 0, ordinal=1)))
    state.committed(3)
    for now_ms in (0, 10):
        state.pass_time(now_ms)
    restored = LogState.restore(state.snapshot(), idempotency_ms=10)
    assert (restored.key_count, restored.producer_count) == (1, 1)
    expire(restored)
    assert (restored.key_count, restored.producer_count) == (0, 0)


def test_a_snapshot_is_of_one_moment_though_its_pieces_are_taken_later() -> None:
    log, state = Log(), LogState()
    for number in range(300):
        state.apply(log.add(AppendMark(0, 1, f"k{number}", digest=DIGEST), producer_mark("p", 0, number, 1)))
    state.committed(log.batches[250].last_index)
    expected = state.snapshot()
    capture, pieces = state.capture(), []
    for number in range(300, 400):
        pieces += capture.take(1)
        state.apply(log.add(AppendMark(0, 1, f"k{number}", digest=DIGEST), control=None))
        state.apply(log.add(control={"kind": "cursor", "name": f"c{number}", "index": 1, "fence": True}))
        state.committed(log.batches[number].last_index)
    while more := capture.take(2_000):
        pieces += more
    assert b"".join(pieces) == expected
    assert len(pieces) > 200
    restoring = LogState.restoring()
    data = b"".join(pieces)
    for start in range(0, len(data), 77):
        restoring.feed(data[start : start + 77])
    assert answers(restoring.finish()) == answers(replay(log.batches[:300]))


def test_a_capture_makes_no_object_for_each_producer() -> None:
    """One turn of the loop makes it, of very many producers too."""
    log, state = Log(), LogState()
    for number in range(20):
        marks = [producer_mark(f"p{number}-{k}", 0, 0, k, 1) for k in range(100)]
        state.apply(log.add(*marks, count=100))
    state.committed(log.batches[-1].last_index)
    gc.collect()
    gc.disable()
    before = len(gc.get_objects())
    capture = state.capture()
    made = len(gc.get_objects()) - before
    gc.enable()
    assert made < 100
    restoring = LogState.restoring()
    while pieces := capture.take(1_000):
        for piece in pieces:
            restoring.feed(piece)
    assert answers(restoring.finish()) == answers(state)


def test_a_snapshot_of_a_batch_that_is_committed_in_part_holds_each_key_once() -> None:
    log, state = Log(), LogState()
    state.apply(log.add(AppendMark(0, 1, "a", digest=DIGEST), AppendMark(1, 1, "b", digest=DIGEST)))
    state.committed(0)
    restored = LogState.restore(state.snapshot())
    assert restored.key_count == 2
    assert answers(restored) == answers(state)


def test_a_snapshot_that_is_cut_off_is_refused() -> None:
    log = Log()
    random_log(Random(7), log, 50)
    snapshot = replay(log.batches).snapshot()
    for end in range(0, len(snapshot), 13):
        with pytest.raises(ValueError, match="snapshot"):
            LogState.restore(snapshot[:end])
    with pytest.raises(ValueError, match="after its end"):
        LogState.restore(snapshot + snapshot[4:])


def test_a_snapshot_of_an_earlier_version_is_read() -> None:
    """Its keys are text, its claims arrays; index 9 and producer q's append there are not committed."""
    old_claim = [5, 6, 3, 400, 500, NOW, DIGEST]
    late = [9, 9, 3, 600, 700, NOW, DIGEST]
    membership = [1, ["n1", "n2"], ["n3"], {"n2": ["http://n2", "n2:1"]}]
    snapshot = msgspec.msgpack.encode(
        [
            9,
            8,
            {"k": old_claim, "late": late},
            {"p": [2, [[7, old_claim]]], "q": [0, [[0, late]]]},
            {"etl": [4, True, 2]},
            "w-a",
            membership,
            3,
            [[9, 5]],
            [[9, 0, "late", None], [9, 1, "q", [0, [[9, old_claim]]]], [9, 2, "etl", [1, False, 1]]],
        ]
    )
    state = LogState.restore(snapshot)
    assert state.find_key("k") == Claim(5, 6, 3, 400, 500, NOW, DIGEST)
    assert state.check_producer("p", 2, 7) == state.find_key("k")
    assert state.check_producer("q", 0, 1) is None
    assert state.membership == (1, ("n1", "n2"), ("n3",), {"n2": ("http://n2", "n2:1")})
    assert (state.fencing_token, state.trim_index, state.data_end) == ("w-a", 3, 10)
    assert state.committed_cursor("etl") == LogCursor(1, False, 1)
    state.truncate_after(8)
    assert (state.find_key("late"), state.cursors["etl"].position) == (None, 1)
    assert state.check_producer("q", 0, 9) == state.find_key("k")
    assert answers(LogState.restore(state.snapshot())) == answers(state)
