"""Nodes that the active controller hears no longer."""

from app.node.metadata.heard_nodes import HeardNodes

TIMEOUT_MS = 2_000


def test_a_node_that_answers_list_no_longer_is_silent_until_one_lists_it_again() -> None:
    heard = HeardNodes(TIMEOUT_MS, ["n1", "n2"])
    heard.answered(["n1", "n2"], 0)
    for now_ms in range(500, 3_000, 500):
        heard.answered(["n1"], now_ms)
        assert heard.is_silent("n2", now_ms) == (now_ms > TIMEOUT_MS)
    assert not heard.is_silent("n1", 2_500)
    heard.answered(["n1", "n2"], 3_000)
    assert not heard.is_silent("n2", 3_000)


def test_a_node_that_has_to_report_is_silent_although_no_answer_has_listed_it() -> None:
    """The active controller froze soon after its election: the others have its answers from before its own
    heartbeat, and their next controller has never heard it."""
    heard = HeardNodes(TIMEOUT_MS, ["n1", "n2"])
    assert not heard.is_silent("n2", 10_000)  # before the first answer
    for now_ms in range(10_000, 13_000, 500):
        heard.answered(["n1"], now_ms)
        assert heard.is_silent("n2", now_ms) == (now_ms > 10_000 + TIMEOUT_MS)
    heard.answered(["n1", "n2"], 13_000)
    assert not heard.is_silent("n2", 13_000)


def test_after_a_time_without_a_controller_its_first_answer_makes_no_node_silent() -> None:
    """A new active controller lists those that it has heard by then; the others are about to report."""
    heard = HeardNodes(TIMEOUT_MS, ["n1", "n2"])
    heard.answered(["n1", "n2"], 0)
    for now_ms in range(10_000, 13_000, 500):
        heard.answered(["n1"], now_ms)
        assert heard.is_silent("n2", now_ms) == (now_ms > 10_000 + TIMEOUT_MS)


def test_no_node_is_silent_where_nothing_is_known() -> None:
    heard = HeardNodes(TIMEOUT_MS, ["n1", "n2"])
    assert not heard.is_silent("n2", 10_000)
    heard.answered(["n1"], 10_000)
    assert not heard.is_silent("a controller without logs", 12_000)
    assert not heard.is_silent("n1", 60_000)  # no controller answers: nothing is known of any node
