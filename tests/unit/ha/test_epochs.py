"""The point at which two logs diverge (A-04), against brute force over all their bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ha.epochs import EpochSpan, spans, truncation_point
from app.ha.frames import EpochStart

Log = list[int]  # the epoch of each byte: an epoch has one master, so equal epochs are equal bytes


def starts_of(log: Log, begin: int = 0) -> tuple[EpochStart, ...]:
    starts: list[EpochStart] = []
    for offset, epoch in enumerate(log):
        if not starts or starts[-1].epoch != epoch:
            starts.append(EpochStart(epoch, offset))
    return tuple(
        start
        for position, start in enumerate(starts)
        if position + 1 == len(starts) or starts[position + 1].start_offset > begin
    )


@st.composite
def histories(draw: st.DrawFn) -> tuple[Log, Log]:
    """Two replicas of one group: every epoch is written by one of them, upon a prefix of what either held."""
    logs: list[Log] = [[], []]
    for epoch in range(1, draw(st.integers(1, 8))):
        writer = draw(st.integers(0, 1))
        logs[writer] += [epoch] * draw(st.integers(0, 4))
        if draw(st.booleans()):  # the other one follows for a while: cut to what is common, then copy
            other = logs[1 - writer]
            common = common_prefix(logs[0], logs[1])
            until = draw(st.integers(common, len(logs[writer])))
            other[:] = logs[writer][:until]
    return logs[0], logs[1]


def common_prefix(one: Log, other: Log) -> int:
    """Byte by byte."""
    same = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        same += 1
    return same


@pytest.mark.rule("A-04")
@given(histories())
def test_the_truncation_point_is_the_end_of_the_common_prefix(logs: tuple[Log, Log]) -> None:
    slave, master = logs
    found = truncation_point(spans(starts_of(slave), len(slave)), spans(starts_of(master), len(master)))
    assert (found or 0) == common_prefix(slave, master)


@pytest.mark.rule("A-04")
@given(histories(), st.data())
def test_logs_that_begin_late_part_at_the_same_byte_or_nowhere(
    logs: tuple[Log, Log], data: st.DataObject
) -> None:
    """A trimmed log lists its first epoch from its true start, or from where it begins."""
    slave, master = logs
    common = common_prefix(slave, master)
    listed = []
    for log in (slave, master):
        begin = data.draw(st.integers(0, max(0, len(log) - 1)))
        starts = list(starts_of(log, begin))
        if starts and data.draw(st.booleans()):
            starts[0] = EpochStart(starts[0].epoch, max(begin, starts[0].start_offset))
        listed.append(spans(starts, len(log)))
    found = truncation_point(listed[0], listed[1])
    assert found in (common, None)


@pytest.mark.rule("A-03")
def test_an_epoch_ends_where_the_next_begins_and_the_last_at_the_end() -> None:
    starts = (EpochStart(1, 0), EpochStart(4, 100), EpochStart(5, 250))
    assert spans(starts, 300) == (EpochSpan(1, 0, 100), EpochSpan(4, 100, 250), EpochSpan(5, 250, 300))


@pytest.mark.rule("A-04")
def test_an_empty_epoch_hides_nothing() -> None:
    """The slave opened epoch 2 at 100 and wrote nothing in it: no proof about the records before."""
    slave = spans((EpochStart(1, 0), EpochStart(2, 100)), 100)
    master = spans((EpochStart(1, 0), EpochStart(3, 60)), 200)
    assert truncation_point(slave, master) == 60


@pytest.mark.rule("A-03", "A-04")
def test_an_epoch_that_holds_nothing_is_not_part_of_a_log() -> None:
    assert spans((EpochStart(1, 0), EpochStart(2, 100)), 100) == (EpochSpan(1, 0, 100),)
    assert spans((), 0) == ()


@pytest.mark.rule("A-04")
def test_the_same_epoch_with_another_start_is_not_the_same_history() -> None:
    slave = spans((EpochStart(1, 0), EpochStart(2, 100)), 200)
    master = spans((EpochStart(1, 0), EpochStart(2, 150)), 300)
    assert truncation_point(slave, master) == 100


@pytest.mark.rule("A-04")
@pytest.mark.parametrize("trimmed", ["slave", "master"])
def test_the_first_epoch_of_a_log_may_be_listed_from_where_the_log_begins(trimmed: str) -> None:
    whole = (EpochStart(1, 0), EpochStart(2, 100))
    begun = (EpochStart(2, 150),)
    slave, master = (begun, whole) if trimmed == "slave" else (whole, begun)
    assert truncation_point(spans(slave, 200), spans(master, 300)) == 200
