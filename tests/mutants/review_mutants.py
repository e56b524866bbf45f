"""Bugs that a review planted and no test had noticed; a test at the lowest level kills each."""

from app.api.read.reader import Reader
from app.api.read.selection import Consistency
from app.log.schemas import LogSchemas
from app.log.state import LogState
from app.node.replica.read_index_queue import ReadGate
from app.node.replica.state_keeper import StateKeeper
from app.node.replica.state_transfer import StateTransfer
from app.raft.core import RaftCore
from app.raft.dispatcher import Dispatcher
from app.raft.entry_handler import EntryHandler
from app.raft.messages import PushCode
from app.raft.quorum import QuorumChecker
from app.raft.reads import LeaderReads
from tests.mutants.edited import plant
from tests.unit.log import test_state as test_log_state
from tests.unit.node.replica import test_driver_commands
from tests.unit.raft import test_dispatcher, test_membership, test_planted_bugs, test_reads

plant(
    "answers_of_an_older_term_confirm_reads",
    "R-08",
    (LeaderReads, "close_term", "self._round = 0\n    self._answered.clear()", "self._round = 0"),
    lambda _: test_reads.test_rounds_of_an_older_term_confirm_nothing(),
)
plant(
    "members_change_before_the_term_has_committed",
    "R-10",
    (RaftCore, "change", "self._leader_reads.term_is_open", "True"),
    lambda _: test_membership.test_no_change_before_a_record_of_the_own_term_is_committed(),
)
plant(
    "a_stale_answer_to_a_comparison_counts",
    "D-11",
    (Dispatcher, "answer", "answer.session != self.session", "answer.session > self.session"),
    lambda _: test_dispatcher.test_an_answer_to_a_comparison_of_an_earlier_session_counts_for_nothing(
        PushCode.INCONSISTENT_STATE
    ),
)
plant(
    "an_uncommitted_trim_outlives_its_record",
    "R-07",
    (LogState, "truncate_after", "self._trims.pop()", "break"),
    lambda _: test_log_state.test_a_trim_goes_with_its_record(),
)
plant(
    "the_state_that_is_sent_keeps_uncommitted_claims",
    "D-28",
    (StateTransfer, "take", "taken.truncate_after(taken.committed_index)", "pass"),
    test_driver_commands.test_the_state_that_is_sent_holds_what_is_committed_alone,
)
plant(
    "a_damaged_member_believes_an_index_from_before_the_comparison",
    "R-12",
    (EntryHandler, "handle", "if request.type in (PushType.APPEND, PushType.COMMIT):", "if True:"),
    lambda _: test_planted_bugs.test_what_was_committed_before_the_comparison_vouches_for_nothing(),
)
plant(
    "a_reset_keeps_uncommitted_keys",
    "D-12",
    (
        StateKeeper,
        "truncated",
        "max(kept_index, self.state.committed_index)",
        "self.state.applied_index if isinstance(truncate, Reset) else kept_index",
    ),
    test_planted_bugs.test_a_reset_takes_back_keys_that_were_not_committed,
)
plant(
    "a_leader_that_leaves_counts_itself",
    "R-10",
    (
        QuorumChecker,
        "check",
        "for voter in state.group.voters",
        "for voter in {*state.group.voters, state.node_id}",
    ),
    lambda _: test_planted_bugs.test_a_leader_that_removed_itself_does_not_count_itself(),
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
    "a_truncated_schema_stays",
    "R-06",
    (LogSchemas, "truncate_after", "self._versions[-1].index > index", "False"),
    lambda _: test_log_state.test_a_schema_goes_with_its_record_and_readers_get_what_they_may_see(),
)
plant(
    "a_snapshot_lacks_the_schemas",
    "R-07",
    (LogState, "capture", "schemas=list(self._schemas.versions)", "schemas=[]"),
    lambda _: test_log_state.test_a_schema_goes_with_its_record_and_readers_get_what_they_may_see(),
)
plant(
    "an_uncommitted_schema_is_shown",
    "R-08",
    (LogSchemas, "until", "[: bisect_right(self._versions, index, key=_INDEX)]", "[:]"),
    lambda _: test_log_state.test_a_schema_goes_with_its_record_and_readers_get_what_they_may_see(),
)
