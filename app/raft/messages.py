"""What Raft nodes say to each other about one log, and how it looks on the wire.

DLedger's push family (D-06) and Raft's votes. A message is a msgspec struct; the batches of a push do not stand
in it but follow it as raw stored bytes, so that nobody encodes them again. All indexes are inclusive.
"""

from enum import IntEnum

import msgspec

from storage.batch import Batch, decode_batch


class PushType(IntEnum):
    COMPARE = 1
    TRUNCATE = 2
    APPEND = 3
    COMMIT = 4


class PushCode(IntEnum):
    SUCCESS = 0
    INCONSISTENT_STATE = 1  # the leader must compare again (D-10)
    REPEATED_PUSH = 2  # D-16
    REFUSED = 3  # older term, other leader (D-21), below the committed index
    BUSY = 4  # no room for it now: try again later (D-07)


class Message(msgspec.Struct, frozen=True, array_like=True, tag_field="kind"):
    """`term` is the sender's, but in a pre-vote the term it would campaign in."""

    term: int


class VoteRequest(Message, frozen=True, array_like=True, tag=1):
    last_index: int
    last_term: int
    pre_vote: bool = False
    transfer: bool = False  # TimeoutNow: skips pre-vote and stickiness


class VoteAnswer(Message, frozen=True, array_like=True, tag=2):
    granted: bool
    pre_vote: bool = False


class Heartbeat(Message, frozen=True, array_like=True, tag=3):
    """Also confirms leadership for reads: `round` counts up within a term (R-04, R-08)."""

    leader_id: str
    committed_index: int
    round: int


class HeartbeatAnswer(Message, frozen=True, array_like=True, tag=4):
    round: int


class PushRequest(Message, frozen=True, array_like=True, tag=5):
    """index, index_term: COMPARE: the compare index and the leader's term there. TRUNCATE: the truncate index
    (a batch's last index). APPEND: the index before the first batch and its term. COMMIT: NO_INDEX, 0.
    reset: TRUNCATE may empty the follower's log (D-12 3, 4, 7; R-07); leader_begin is the leader's begin index.
    """

    type: PushType
    leader_id: str
    committed_index: int
    index: int
    index_term: int
    leader_begin: int
    reset: bool = False
    batches: tuple[Batch, ...] = ()  # on the wire: the payload


class PushAnswer(Message, frozen=True, array_like=True, tag=6):
    """Cumulative: with SUCCESS to an APPEND everything up to `index` is as durable as the log's setting says.

    conflict_term, conflict_index: with INCONSISTENT_STATE to a COMPARE, the follower's last term that is at most
    the leader's there, and its last index in that term (D-13).
    """

    type: PushType
    code: PushCode
    index: int
    begin_index: int
    end_index: int
    conflict_term: int = 0
    conflict_index: int = -1


class ReadIndexRequest(Message, frozen=True, array_like=True, tag=7):
    """A follower asks for a read index (R-08). `id` is unique at the sender."""

    id: int


class ReadIndexAnswer(Message, frozen=True, array_like=True, tag=8):
    id: int
    index: int  # NO_INDEX - 1: not confirmed


class TimeoutNow(Message, frozen=True, array_like=True, tag=9):
    """Campaign at once (R-09)."""


RaftMessage = (
    VoteRequest
    | VoteAnswer
    | Heartbeat
    | HeartbeatAnswer
    | PushRequest
    | PushAnswer
    | ReadIndexRequest
    | ReadIndexAnswer
    | TimeoutNow
)
