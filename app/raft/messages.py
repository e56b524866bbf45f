"""Messages between Raft nodes about one log. Encoding: app/node/network/wire.py.

DLedger's push family (D-06) and Raft's votes. The frame contains the log id; source and target are those of
the connection. All indexes are inclusive.
"""

from enum import IntEnum
from typing import Annotated

import msgspec

from storage.format.batch import Batch
from storage.format.epoch_file import Epoch


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
    BUSY = 4  # no space for it now: D-07 repeats it


class Message(msgspec.Struct, frozen=True, array_like=True, tag_field="kind"):
    """`term` is the sender's; in a pre-vote the term in which it would campaign."""

    term: Annotated[int, msgspec.Meta(ge=0)]


class VoteRequest(Message, frozen=True, array_like=True, tag=1):
    """last_index, last_term: the candidate's log (R-02). transfer: its leader requested it (R-09).

    weighs: the candidate counts votes of unsound members only when every voter grants its vote.
    """

    last_index: int
    last_term: int
    pre_vote: bool = False
    transfer: bool = False
    weighs: bool = False


class GroupNotice(msgspec.Struct, frozen=True, array_like=True):
    """The committed group of a log, for a node outside of it (R-10).

    index: of its membership record. leader_id: None while the sender knows no leader. nodes: id -> (base URL,
    host:port for peers) of the members whose addresses are in the log alone. term: of the newest record
    that the sender knows to be committed; 0 if it does not hold it, and from older versions.
    """

    index: Annotated[int, msgspec.Meta(ge=0)]
    voters: tuple[str, ...]
    learners: tuple[str, ...]
    leader_id: str | None
    nodes: dict[str, tuple[str, str]]
    term: Annotated[int, msgspec.Meta(ge=0)] = 0


class VoteAnswer(Message, frozen=True, array_like=True, tag=2):
    """term: of the request when granted, else the voter's own. group: with a refused pre-vote of a node that
    is not a member; older versions neither send nor read it. sound: whether the voter is. voters: when it is
    granted, of the voter's group while no record of its log names that; else, and from older versions, ()."""

    granted: bool
    pre_vote: bool = False
    group: GroupNotice | None = None
    sound: bool = True
    voters: tuple[str, ...] = ()


class Heartbeat(Message, frozen=True, array_like=True, tag=3):
    """`round` counts up within a term; an answer confirms the leader for reads asked before (R-08)."""

    leader_id: str
    committed_index: int
    round: int


class HeartbeatAnswer(Message, frozen=True, array_like=True, tag=4):
    """round: NO_INDEX when the heartbeat was of an older term. has_room: whether this member's disk has
    space. sound: whether the follower is sound. trusts: false while it may have lost a vote for the leader
    of a newer term; such an answer does not keep a leader in office (R-04)."""

    round: int
    has_room: bool = True
    sound: bool = True
    trusts: bool = True


class PushHead(Message, frozen=True, array_like=True, tag=5):
    """index, index_term: a record of the leader's log that the follower must agree with. COMPARE: the compare
        index. TRUNCATE, APPEND: the record before the first batch. COMMIT: what the leader believes the
        follower to hold.
    session: counts the dispatcher's changes of state: a push or an answer of an older one is stale.
    incarnation: of the follower, as in its answer to COMPARE (0 in a COMPARE): a push to an earlier one is
        stale.
    leader_begin: the leader's begin index.
    reset: TRUNCATE may empty the follower's log (D-12 3, 4, 7; R-07).
    syncs: the leader's log has the durability `fsync`: the follower acknowledges what it has on disk, also if
        it does not know that setting yet.
    """

    type: PushType
    leader_id: str
    committed_index: int
    session: int
    incarnation: int
    index: int
    index_term: int
    leader_begin: int
    reset: bool = False
    syncs: bool = False


class PushRequest(PushHead, frozen=True, array_like=True, tag=5):
    """A push and its batches, neighbours. TRUNCATE: one batch, whose last index is the truncate index."""

    batches: tuple[Batch, ...] = ()

    @property
    def truncate_index(self) -> int:
        return self.batches[-1].last_index


class PushAnswer(Message, frozen=True, array_like=True, tag=6):
    """Cumulative: SUCCESS confirms that the follower holds the leader's log up to `index`, as durably as the
    log requires; so does `end_index` after a TRUNCATE (D-14).

    index: with SUCCESS the confirmed one (COMPARE: the compare index); otherwise that of the request.
    incarnation: drawn at random when the follower started. conflict_term, conflict_index: with
    INCONSISTENT_STATE to a COMPARE, the follower's last index at or below the compare index whose term is at
    most the leader's there, and that record's term (D-13). begin_index: of an empty log the index of its
    first record.
    may_lead: false while the follower lacks the log's state, or something that it once acknowledged. sound:
    false while it may lack something that it once acknowledged or voted: its answers do not count.
    """

    type: PushType
    code: PushCode
    session: int
    incarnation: int
    index: int
    begin_index: int
    end_index: int
    conflict_term: int = 0
    conflict_index: int = -1
    may_lead: bool = True
    sound: bool = True


class ReadIndexRequest(Message, frozen=True, array_like=True, tag=7):
    """Request of a follower for a read index (R-08). `id` is random: no answer to an earlier incarnation
    matches.

    leadership: only whether the receiver still leads (doubt.py). Older versions answer a read index.
    """

    id: int
    leadership: bool = False


class ReadIndexAnswer(Message, frozen=True, array_like=True, tag=8):
    """index: None when leadership was not confirmed."""

    id: int
    index: int | None


class TimeoutNow(Message, frozen=True, array_like=True, tag=9):
    """Transfer of leadership: start an election at once, without a pre-vote (R-09)."""


class StateRequest(msgspec.Struct, frozen=True, array_like=True, tag_field="kind", tag=10):
    """Request for the log's state, from a byte of it on, by a replica that lacks earlier records.

    id: of the transfer, by which the pieces of one snapshot belong together. begin_term: not 0 for a request
    of the epoch of this term instead (app/node/state/state_transfer.py). Older versions send the state.
    """

    id: int
    offset: Annotated[int, msgspec.Meta(ge=0)]
    begin_term: int = 0


class StateChunk(msgspec.Struct, frozen=True, array_like=True, tag_field="kind", tag=11):
    """A piece of the state; `total`: bytes of all pieces, `crc`: CRC32C over all of them. epoch: the answer
    to a request with a term, which has no state."""

    id: int
    offset: int
    total: int
    crc: int
    data: bytes
    epoch: Epoch | None = None


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
StateMessage = StateRequest | StateChunk
