"""Planted bugs in reads and refusals: what a replica shows, and when."""

from collections.abc import Callable
from typing import Any

import pytest

from app.api.read.reader import Reader
from app.api.read.selection import Consistency
from app.log.contract import Acks, PendingAppend
from app.log.schemas import LogSchemas
from app.log.state import LogState
from app.node.replica.append_queue import AppendQueue
from app.node.replica.confirmed_answers import ConfirmedAnswer
from app.node.replica.read_gate import ReadGate
from app.raft.core import RaftCore
from app.raft.reads import FollowerReads, LeaderReads
from tests.mutants.planting import Killer, mutant, plant, planted
from tests.unit.api.read import test_reader
from tests.unit.log import test_state as test_log_state
from tests.unit.node.replica import (
    test_confirmed_answers,
    test_driver_disk,
)
from tests.unit.raft import (
    test_doubt,
    test_planted_bugs,
    test_reads,
)


@mutant("R-08")
def a_read_index_without_a_quorum(patch: pytest.MonkeyPatch) -> None:
    def ask(self: LeaderReads, reader: Any, now_ms: int) -> None:
        self._give(reader, self._member.committed_index)

    patch.setattr(LeaderReads, "ask", ask)


@mutant("R-08")
def a_read_index_before_the_term_is_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaderReads, "term_is_open", True)


@mutant("R-08", lambda _: test_reads.test_rounds_of_an_older_term_confirm_nothing())
def answers_of_an_older_term_confirm_reads(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, LeaderReads, "close_term")
    def close_term(original: Any, self: LeaderReads) -> None:
        answered = dict(self._answered)
        original(self)
        self._answered.update(answered)


@mutant("R-08", test_driver_disk.test_a_follower_answers_a_read_only_when_it_has_the_index)
def a_confirmed_read_does_not_wait_for_this_replica(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, ReadGate, "give")
    def give(original: Any, self: ReadGate, done: Any, index: int | None, now_ms: int) -> None:
        if index is None:
            original(self, done, index, now_ms)
        else:
            done(index)


@mutant("R-08", test_reader.test_only_a_local_read_sees_what_is_not_committed)
def every_read_shows_uncommitted_records(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reader, "visible_end", property(lambda self: self.log.end_index))


@mutant("R-08", lambda _: test_doubt.test_an_unsound_voter_confirms_no_read())
def unsound_voters_confirm_reads(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, LeaderReads, "answered")
    def answered(original: Any, self: LeaderReads, peer: str, number: int, *, sound: bool) -> None:
        original(self, peer, number, sound=True)


@mutant("R-07", lambda _: test_log_state.test_readers_get_the_cursor_that_is_committed())
def readers_get_cursors_that_may_be_undone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogState, "committed_cursor", lambda self, name: self.cursors.get(name))


def _led(test: Callable[[test_confirmed_answers.Led], None]) -> Killer:
    return lambda folder: test(test_confirmed_answers.Led(folder))


@mutant("R-08", _led(test_confirmed_answers.test_a_refusal_by_what_is_undone_is_never_given))
def a_refusal_tells_of_what_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        ConfirmedAnswer, "pending", lambda self: PendingAppend(0, 0, Acks.LEADER, self.deadline_ms, self)
    )


@mutant("R-08", _led(test_confirmed_answers.test_a_refusal_waits_until_the_lead_is_confirmed))
def a_deposed_leader_refuses_by_its_own_state(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RaftCore, "read_index", lambda self, token, now_ms: token(self.committed_index))


plant(
    "a_late_read_index_answers_newer_readers",
    "R-08",
    (FollowerReads, "answered", " or answer.id != self._id", ""),
    lambda _: test_reads.test_an_answer_to_an_earlier_incarnation_is_not_taken(),
)
plant(
    "reads_share_the_round_under_way",
    "R-08",
    (LeaderReads, "begin_round", "(self._round, self._member", "(self._round - 1, self._member"),
    lambda _: test_reads.test_a_read_index_is_given_only_after_a_quorum_has_confirmed_the_leader(),
)
plant(
    "answers_of_an_older_term_confirm_reads",
    "R-08",
    (LeaderReads, "close_term", "self._round = 0\n    self._answered.clear()", "self._round = 0"),
    lambda _: test_reads.test_rounds_of_an_older_term_confirm_nothing(),
)
plant(
    "every_read_shows_uncommitted_records",
    "R-08",
    (Reader, "visible_end", "if self.consistency is Consistency.LOCAL:", "if True:"),
    lambda _: test_planted_bugs.test_a_read_shows_no_record_beyond_the_committed_index(
        Consistency.LINEARIZABLE
    ),
)
plant(
    "a_confirmed_read_does_not_wait_for_this_replica",
    "R-08",
    (
        ReadGate,
        "give",
        "waiter = self._when_committed(index, lambda: done(index))",
        "done(index)\n    waiter = self._when_committed(-1, lambda: None)",
    ),
    lambda _: test_planted_bugs.test_a_confirmed_read_waits_until_this_replica_has_its_index(),
)
plant(
    "an_uncommitted_schema_is_shown",
    "R-08",
    (LogSchemas, "until", "[: bisect_right(self._versions, index, key=_INDEX)]", "[:]"),
    lambda _: test_log_state.test_a_schema_goes_with_its_record_and_readers_get_what_they_may_see(),
)
plant(
    "readers_wait_for_ever_after_a_lost_request",
    "R-08",
    (
        FollowerReads,
        "tick",
        "self._finish(None)\n        if self._queued:\n            self._send(now_ms)",
        "self._finish(None)",
    ),
    lambda _: test_reads.test_readers_that_queue_after_a_lost_request_are_asked_for_when_it_times_out(),
)
plant(
    "an_answer_of_an_earlier_term_is_given",
    "R-08",
    (AppendQueue, "_confirm_decided", "core.term != each.term", "False"),
    _led(test_confirmed_answers.test_an_answer_that_an_earlier_term_has_decided_is_withdrawn),
)
plant(
    "a_read_that_was_given_up_is_answered_again",
    "R-08",
    (ReadGate, "give_up", "waiter.cancel()", "pass"),
    lambda _: test_planted_bugs.test_a_confirmed_read_that_was_given_up_is_not_answered_again(),
)


plant(
    "readers_get_the_index_of_a_confirmation",
    "R-08",
    (
        FollowerReads,
        "_send",
        "about_lead = [token for token in self._queued if isinstance(token, Confirmation)]",
        "about_lead = self._queued if any(isinstance(each, Confirmation) for each in self._queued) else []",
    ),
    lambda _: test_reads.test_a_confirmation_of_the_lead_gives_no_reader_its_index(),
)
