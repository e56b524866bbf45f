"""Rare paths that the runs must reach, seen from outside: messages, events of the journal, answers, restarts.

A point that never fires in a full run (`make sim`) fails it: what is never reached is not tested.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from app.errors import CommitlogError
from app.log.contract import NO_INDEX, AppendResult, ReplicaLog
from app.raft.messages import (
    HeartbeatAnswer,
    PushAnswer,
    PushCode,
    PushRequest,
    PushType,
    StateChunk,
    TimeoutNow,
    VoteAnswer,
)
from storage.log.journal import Journal

# name -> rule and meaning. Cases (4) and (7) of D-12 are not among them: only committed records are trimmed,
# and those never conflict: a correct cluster does not reach them, and test_dispatcher.py proves them.
POINTS: dict[str, str] = {
    "compare-1-equal": "D-12 (1): the logs are equal",
    "compare-2-longer": "D-12 (2): the follower holds more",
    "compare-3-disjoint": "D-12 (3): nothing in common",
    "compare-5-shorter": "D-12 (5): the follower holds less",
    "compare-6-back": "D-12 (6): another term there, compare further back",
    "compare-again": "D-13: a comparison took more than one step back",
    "truncate-retried": "D-14: a TRUNCATE was sent again",
    "reset": "R-07: a follower's log was emptied",
    "uncommitted-cut": "R-06: records that were never committed were cut",
    "repeated-push": "D-16: a second push of a waiting index",
    "push-refused": "D-21: a push of a stale leader",
    "push-busy": "D-10: a follower had no room",
    "fast-forward": "D-18: an early append waited too long",
    "lost-answer": "D-07: a push was sent again",
    "fell-behind": "D-17: an append of what the follower holds already",
    "window-full": "D-04: as many pushes in flight as may be",
    "throttled": "D-09: a peer far behind gets a limited stream",
    "vote-refused-for-log": "R-02: a candidate lacked records",
    "pre-vote-refused": "R-03: a node asked to campaign, and may not",
    "stale-heartbeat": "R-01: a leader of an older term spoke",
    "stood-down": "R-04: a leader missed its majority",
    "term-changed": "D-23: an append lost its leader",
    "quorum-timeout": "D-26: an append waited too long",
    "not-leader": "D-29: an append at a follower",
    "no-leader": "D-29: an append while nobody led",
    "repeat-elsewhere": "D-28: a repeat by key or sequence, answered by another leader than the first one",
    "index-mismatch": "a condition on the index did not hold",
    "read-refused": "R-08: a read could not be confirmed",
    "storage-full-refused": "an append met a full disk",
    "storage-full-resumed": "R-11: a node went on after its disk had been full, without a restart",
    "sync-failed": "R-11: a failed sync stopped a node",
    "disk-error": "an error of the disk stopped a node",
    "stale-leader-wakes": "R-01: a leader was stalled until another had been elected",
    "transfer-asked": "R-09: a leader asked its successor to campaign",
    "transfer-done": "R-09: that successor led the next term",
    "stopped-clean": "R-09: a planned stop came to its end",
    "member-added": "R-10: a learner",
    "member-promoted": "R-10: a learner became a voter",
    "member-removed": "R-10: a member left",
    "membership-undone": "R-10: the record of a change was cut, and the change undone",
    "member-changed": "R-10: a step of a change of the group's size",
    "leader-removed": "R-10: a leader removed itself",
    "shrunk-to-one": "R-10: a group of one voter, from a larger one",
    "shrunk": "R-10: a group of two voters, from a larger one",
    "grown-to-all": "R-10: every node became a voter",
    "trimmed-all": "a trim of everything committed was committed",
    "disk-replaced": "a node got an empty disk",
    "flip-running": "a bit rotted on the disk of a running process",
    "copy-restored": "a node got an older copy of its disk",
    "power-replicated": "a power failure took what `replicated` durability had acknowledged at one node",
    "caught-up-again": "a replica whose disk had lost what it promised holds everything committed again",
    "scrubbed": "storage: a log was read again from its begin to its end",
    "late-frame": "R-01: a frame that a cut had kept arrived after the reconnect",
    "state-in-pieces": "the state of a log came in several pieces",
    "group-acknowledged": "D-25: appends of several clients entered as one and were acknowledged",
    "group-refused": "D-23, D-29: such a group was refused, or its outcome is unknown",
    "tables-shared": "D-08: appends that are tables shared a batch",
    "key-kept": "an old key was remembered",
    "key-expired": "an old key was free again",
    "large-batch": "a committed batch held several records",
    "page-read": "R-08: a page of records was what was committed",
    "cursor-read": "R-08: a cursor was what was committed",
    "command-refused": "R-10: a change or trim that may not be",
    "trimmed": "a trim was committed",
    "fenced": "a fence was set",
    "schema-set": "a version of the schema was committed",
    "options-fsync": "the settings of the log require syncs before acknowledgements",
    "options-replicated": "R-11: they permit acknowledgements before the sync",
    "fence-refused": "an append without the token",
    "state-sent": "a replica whose log begins after the past got the state from its leader",
    "intent-finished": "storage: a cut that a crash had interrupted was finished at recovery",
    "torn-tail-cut": "storage: recovery cut a torn tail",
    "crash-in-recovery": "storage: the power failed within a recovery",
    "flip-at-start": "storage: start-up found a rotten bit",
    "flip-at-read": "storage: a read found a rotten bit",
    "repair-done": "storage: a damaged log was mended from its peers, and votes again",
    "repair-set-aside": "storage: a log was beyond mending, and began anew",
    "flip-harmless": "storage: a rotten bit was made good by redundancy",
}
OF_ANSWERS = {
    "TermChanged": "term-changed",
    "QuorumTimeout": "quorum-timeout",
    "NotLeader": "not-leader",
    "NoLeader": "no-leader",
    "IndexMismatch": "index-mismatch",
    "Fenced": "fence-refused",
    "StorageFull": "storage-full-refused",
}


class Watched(Protocol):
    @property
    def log(self) -> ReplicaLog: ...
    @property
    def driver(self) -> Any: ...


class Sometimes:
    """Counts how often each point was reached."""

    def __init__(self, nodes: Mapping[str, Watched]) -> None:
        self.counts: Counter[str] = Counter()
        self._nodes = nodes
        self._pushed: dict[tuple[str, str], tuple[int, int, int]] = {}  # link -> (term, session, next index)
        self._truncates: dict[tuple[str, str], tuple[int, int]] = {}  # link -> (term, session)
        self._compared: dict[tuple[str, str], tuple[int, int]] = {}
        self._successor: tuple[str, int] | None = (
            None  # who was asked to campaign, and the term it should lead
        )
        self._of_messages: dict[type, Callable[[str, str, Any], None]] = {
            PushRequest: self._push,
            PushAnswer: self._push_answer,
            VoteAnswer: self._vote_answer,
            HeartbeatAnswer: self._heartbeat_answer,
            StateChunk: self._state_chunk,
            TimeoutNow: self._timeout_now,
        }

    def hit(self, point: str) -> None:
        """Raises KeyError for a point that is not on the list."""
        POINTS[point]
        self.counts[point] += 1

    def message(self, source: str, target: str, message: Any) -> None:
        """A node sends a message."""
        look = self._of_messages.get(type(message))
        if look is not None:
            look(source, target, message)

    def observe(self, journal: Journal) -> None:
        """See every event of a node on its way into its journal."""
        write = journal.append

        def append(kind: str, term: int, data: dict[str, Any], timestamp_ms: int) -> Any:
            if kind == "truncate" and not data["refused"]:
                self.hit("reset" if data["reset"] else "uncommitted-cut")
            return write(kind, term, data, timestamp_ms)

        journal.append = append  # type: ignore[method-assign]

    def leads(self, node: str, term: int) -> None:
        """A node begins to lead."""
        if self._successor == (node, term):
            self.hit("transfer-done")

    def answered(self, node: str, answer: AppendResult | CommitlogError) -> None:
        """A client hears what became of its append at the node."""
        if isinstance(answer, AppendResult):
            if answer.replayed and answer.leader != node:
                self.hit("repeat-elsewhere")
        elif (point := OF_ANSWERS.get(type(answer).__name__)) is not None:
            self.hit(point)

    def read(self, answer: int | CommitlogError) -> None:
        if isinstance(answer, CommitlogError):
            self.hit("read-refused")

    # --- messages

    def _push(self, source: str, target: str, push: PushRequest) -> None:
        link = source, target
        if push.type is PushType.APPEND:
            self._look_at_window(source, target)
            term, session, next_index = self._pushed.get(link, (0, 0, 0))
            known = (term, session) == (push.term, push.session)
            if known and push.batches[0].base_index < next_index:
                self.hit("lost-answer")
            else:
                self._pushed[link] = push.term, push.session, push.batches[-1].next_index
        elif push.type is PushType.TRUNCATE:
            if self._truncates.get(link) == (push.term, push.session):
                self.hit("truncate-retried")
            self._truncates[link] = push.term, push.session

    def _look_at_window(self, leader: str, peer: str) -> None:
        dispatcher = self._nodes[leader].driver._core._peers.dispatchers.get(peer)
        if dispatcher is not None and dispatcher._window_is_full():
            self.hit("window-full")
            if dispatcher._throttled:
                self.hit("throttled")

    def _push_answer(self, source: str, target: str, answer: PushAnswer) -> None:
        if answer.code is PushCode.REPEATED_PUSH:
            self.hit("repeated-push")
        elif answer.code is PushCode.REFUSED:
            self.hit("push-refused")
        elif answer.code is PushCode.BUSY:
            self.hit("push-busy")
        elif answer.type is PushType.COMPARE:
            self._compare_answer(source, target, answer)
        elif answer.type is PushType.APPEND and answer.code is PushCode.INCONSISTENT_STATE:
            self.hit("fast-forward" if answer.index > answer.end_index + 1 else "fell-behind")

    def _compare_answer(self, source: str, target: str, answer: PushAnswer) -> None:
        """source: the follower. b, e are from the answer, B, E from the leader."""
        log, compared = self._nodes[target].log, answer.index
        if answer.code is PushCode.SUCCESS:
            self.hit("compare-1-equal" if compared == answer.end_index else "compare-2-longer")
        elif answer.end_index < log.begin_index or answer.begin_index > log.end_index:
            self.hit("compare-3-disjoint")
        elif compared > answer.end_index:
            self.hit("compare-5-shorter")
        else:
            self.hit("compare-6-back")
            if self._compared.get((source, target)) == (answer.term, answer.session):
                self.hit("compare-again")
            self._compared[source, target] = answer.term, answer.session

    def _vote_answer(self, source: str, target: str, answer: VoteAnswer) -> None:
        if answer.granted:
            return
        voter, candidate = self._nodes[source].log, self._nodes[target].log
        if answer.pre_vote:
            self.hit("pre-vote-refused")
        elif (candidate.last_term, candidate.end_index) < (voter.last_term, voter.end_index):
            self.hit("vote-refused-for-log")

    def _heartbeat_answer(self, source: str, target: str, answer: HeartbeatAnswer) -> None:
        if answer.round == NO_INDEX:
            self.hit("stale-heartbeat")

    def _state_chunk(self, source: str, target: str, chunk: StateChunk) -> None:
        self.hit("state-in-pieces" if chunk.offset else "state-sent")

    def _timeout_now(self, source: str, target: str, message: TimeoutNow) -> None:
        self.hit("transfer-asked")
        self._successor = target, message.term + 1
