"""Whom a repair asks, in which order, and when it gives up: pure decisions over scripted answers."""

import pytest

from app.node.network.repair_messages import FetchAnswer
from app.node.repair.fetch import NOT_SETTLED_ROUNDS, Fetch, Outlook
from app.node.repair.server import ByteBudget
from storage.format.batch import FIRST_CHAIN, Batch, stamp
from storage.format.records import RecordColumns, encode_body


def history(count: int, *, salt: str = "") -> list[Batch]:
    """Batches of two records each, chained."""
    batches: list[Batch] = []
    for number in range(count):
        records = RecordColumns()
        records.add(f"{salt}{number}".encode())
        records.add(b"second")
        before = batches[-1] if batches else None
        batches.append(
            stamp(
                encode_body(records),
                log_id=7,
                base_index=0 if before is None else before.next_index,
                term=1,
                timestamp_ms=1,
                offset=0 if before is None else before.next_offset,
                previous_chain=FIRST_CHAIN if before is None else before.header.chain,
            )
        )
    return batches


OURS = history(10)
OTHERS = history(10, salt="other")


def given(*batches: Batch) -> FetchAnswer:
    return FetchAnswer(1, 0, 19, False, batches)


NOT_YET = FetchAnswer(1, 0, 3)
TRIMMED = FetchAnswer(1, 12, 19)
OFFLINE = FetchAnswer(1, -1, -1)


def test_pieces_come_from_one_peer_until_all_is_there() -> None:
    fetch = Fetch(4, 11, ("n2", "n3"), 2)
    assert fetch.next().peer == "n2"
    assert fetch.took("n2", given(OURS[2], OURS[3])) == (OURS[2], OURS[3])
    ask = fetch.next()
    assert (ask.peer, ask.first_index, ask.pause_ms) == ("n2", 8, 0)
    assert fetch.took("n2", given(OURS[4])) == (OURS[4],)
    assert fetch.next_index == 10
    assert fetch.took("n2", None) == ()  # silent: the other one goes on where this one stopped
    ask = fetch.next()
    assert (ask.peer, ask.first_index) == ("n3", 10)
    assert fetch.took("n3", given(OURS[5])) == (OURS[5],)
    assert fetch.next_index == 12


def test_peers_are_asked_in_turn_with_growing_pauses() -> None:
    fetch = Fetch(4, 11, ("n2", "n3"), 2)
    asked = []
    for _ in range(24):
        ask = fetch.next()
        asked.append((ask.peer, ask.pause_ms))
        fetch.took(ask.peer, None)
    assert [peer for peer, _ in asked] == ["n2", "n3"] * 12
    pauses = [pause for peer, pause in asked if peer == "n2"]
    assert pauses[:4] == [0, 100, 200, 400]
    assert pauses[-1] == 5_000
    assert all(pause == 0 for peer, pause in asked if peer == "n3")
    assert fetch.waits
    assert not fetch.hopeless  # silence is no answer


def test_pauses_are_short_again_after_a_silent_peer_has_answered() -> None:
    """Eight rounds with the longest pause would take 40 s, in which this replica does not serve."""
    fetch = Fetch(4, 11, ("n2", "n3"), 2)
    for _ in range(10):
        fetch.took("n2", None)
        fetch.took("n3", NOT_YET)
    pauses = []
    while not fetch.hopeless:
        pauses.append(fetch.next().pause_ms)
        fetch.took("n2", TRIMMED)
        fetch.took("n3", NOT_YET)
    assert pauses == [5_000, 100, 200, 400, 800, 1_600, 3_200, 5_000]


def test_a_stretch_that_all_have_trimmed_or_never_had_is_hopeless() -> None:
    fetch = Fetch(4, 11, ("n2", "n3"), 2)
    fetch.took("n2", TRIMMED)
    assert not fetch.hopeless
    fetch.took("n3", given(OTHERS[3]))  # not at the index that was asked for
    assert fetch.outlook == {"n2": Outlook.TRIMMED, "n3": Outlook.OTHER}
    assert fetch.hopeless


@pytest.mark.rule("R-07")
def test_only_a_majority_that_answers_for_long_proves_that_it_was_never_committed() -> None:
    alone, both = Fetch(4, 11, ("n2", "n3"), 2), Fetch(4, 11, ("n2", "n3"), 2)
    for _ in range(NOT_SETTLED_ROUNDS):
        assert not both.hopeless
        for peer in ("n2", "n3"):
            both.took(peer, NOT_YET)
            alone.took(peer, NOT_YET if peer == "n2" else None)
    assert both.hopeless
    for _ in range(100):
        alone.took("n2", NOT_YET)
        alone.took("n3", None)
    assert not alone.hopeless  # the other one may have it


def test_a_peer_under_repair_does_not_make_a_fetch_hopeless() -> None:
    fetch = Fetch(4, 11, ("n2", "n3"), 2)
    for _ in range(3 * NOT_SETTLED_ROUNDS):
        fetch.took("n2", OFFLINE)
        fetch.took("n3", OFFLINE)
    assert not fetch.hopeless


def test_a_piece_that_does_not_follow_is_not_taken() -> None:
    fetch = Fetch(0, 11, ("n2", "n3"), 2)
    assert fetch.took("n2", given(OURS[0], OURS[1])) != ()
    fetch.took("n2", None)
    assert fetch.took("n3", given(OTHERS[2])) == ()  # the right index of another history
    assert fetch.outlook["n3"] is Outlook.OTHER
    assert fetch.next_index == 4


def test_the_budget_puts_off_what_is_past_a_burst() -> None:
    budget = ByteBudget(1_000_000)
    assert budget.allows(0)
    budget.spend(100_000, 0)
    assert budget.allows(0)
    budget.spend(100_000, 0)
    assert not budget.allows(50)
    assert budget.allows(100)
