"""Commands to the active controller, and its answers.

A command may arrive twice, or late: its first answer may have been lost, and the caller does not know. So
every command names the state that it was meant for, and a repeat of a command that was carried out gets its
answer again instead of a second effect. A repeat may also be late: another change, or another log of the
name, may have followed. `generation` identifies the log, `change_id` the change, and the controllers remember
the changes that were carried out.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

from app.controller.metadata import LogSpec


class ControllerCommand(msgspec.Struct, frozen=True, array_like=True, tag_field="command", tag=str):
    """log: the log whose metadata it is about."""

    log: str


class ApplyForReplicaId(ControllerCommand, frozen=True, array_like=True, tag="apply-for-replica-id"):
    """C-03: `check_code` was saved beside the empty copy first; the same code gets the same id."""

    generation: int
    node: str
    check_code: str


class RegisterReplica(ControllerCommand, frozen=True, array_like=True, tag="register-replica"):
    """C-03: the id has been made durable; the copy takes part from now on. Repeated at each start.

    max_offset: byte after the last record that this copy holds durably at its start, None from an earlier
    version: a copy that reported more as confirmed has lost records since. log_epoch: of the last of these
    records, 0 for none; None from an earlier version. is_copy: the folder is a copy of the one that the last
    incarnation used (storage/log/origin.py), so it may be older, whatever it holds.
    """

    generation: int
    node: str
    replica_id: int
    check_code: str
    address: str
    max_offset: int | None = None
    log_epoch: int | None = None
    is_copy: bool = False


class AlterSyncStateSet(ControllerCommand, frozen=True, array_like=True, tag="alter-sync-state-set"):
    """C-06: master, its epoch, the epoch of the set it goes from, and the set it wants (replica ids).

    acks: how many members of the set it will count, 0 for all. Every member holds all that is acknowledged.
    """

    generation: int
    master: int
    master_epoch: int
    set_epoch: int
    wanted: tuple[int, ...]
    acks: int = 0


class StepDown(ControllerCommand, frozen=True, array_like=True, tag="step-down"):
    """The master of this epoch has given it up: it acknowledges nothing any more, and requests an election.

    It does so when its lease is withheld, when it stops, or when it cannot open its epoch (a restarted
    process never resumes one). leaving: its node stops, and is not to be elected. confirmed: byte after the
    last record that it has acknowledged; None: this process was not master in the epoch. unused: this process
    opened the epoch, and used no lease in it: it has acknowledged nothing since its election.
    """

    generation: int
    master: int
    master_epoch: int
    leaving: bool = False
    confirmed: int | None = None
    unused: bool = False


class ElectMaster(ControllerCommand, frozen=True, array_like=True, tag="elect-master"):
    """C-05, by an operator. candidate: the requested node, None for any. seen_epoch: the master epoch at
    the first request: once it is outdated, the command has been carried out. generation: of the log, None
    for any."""

    candidate: str | None
    unclean: bool
    seen_epoch: int
    generation: int | None = None


class CreateLog(ControllerCommand, frozen=True, array_like=True, tag="create-log"):
    """The same settings again denote the same log. change_id: random, the same in every repeat."""

    spec: LogSpec
    change_id: str


class ChangeLog(ControllerCommand, frozen=True, array_like=True, tag="change-log"):
    """changes: fields of LogSpec and their new values. version: the ETag that must match, None for any.
    generation: of the log, None for any. force: replicas that are taken out leave at once, whatever the
    others hold (replica_changes.py)."""

    changes: dict[str, Any]
    change_id: str
    version: int | None = None
    generation: int | None = None
    force: bool = False


class ReplicaChange(StrEnum):
    """One change of one node's replica (replica_changes.py)."""

    ADD = "add"  # as a learner
    PROMOTE = "promote"  # from learner to replica
    DEMOTE = "demote"  # from replica to learner
    REMOVE = "remove"
    CLEAN = "clean"  # remove it at once, although its node is lost


class ChangeReplica(ControllerCommand, frozen=True, array_like=True, tag="change-replica"):
    """Change of one replica by an operator, in controller mode.

    change_id, generation: as in CreateLog and ChangeLog. force: REMOVE and CLEAN take the node out at
    once, also when it is alive or has the last copy in sync.
    """

    node: str
    change: ReplicaChange
    change_id: str
    generation: int | None = None
    force: bool = False


class DeleteLog(ControllerCommand, frozen=True, array_like=True, tag="delete-log"):
    """version: the ETag that must match, None for any. generation: of the log, None for any. change_id: as in
    CreateLog. Another command to delete a log that is being deleted already is refused."""

    version: int | None = None
    generation: int | None = None
    change_id: str = ""


class ChangeControllers(ControllerCommand, frozen=True, array_like=True, tag="change-controllers"):
    """Settings of the controllers at run time (config.py). changes: new values, None for that of the file.
    version: the ETag that must match, None for any. change_id: as in CreateLog. log: of the metadata."""

    changes: dict[str, Any]
    change_id: str
    version: int | None = None


AnyCommand = (
    ChangeControllers
    | ApplyForReplicaId
    | RegisterReplica
    | AlterSyncStateSet
    | StepDown
    | ElectMaster
    | CreateLog
    | ChangeLog
    | ChangeReplica
    | DeleteLog
)


class Reason(StrEnum):
    """Reason of a refused command; nothing was changed."""

    NOT_ACTIVE = "not-active"  # this controller does not lead; ask the one in `active`
    UNKNOWN_LOG = "unknown-log"
    LOG_EXISTS = "log-exists"
    LOG_DELETING = "log-deleting"
    CONFIGURED_LOG = "configured-log"  # it belongs to the configuration file
    WRONG_MODE = "wrong-mode"  # the controllers do not choose the log's master
    INVALID = "invalid"
    CONFIG_CHANGED = "config-changed"
    OTHER_GENERATION = "other-generation"  # meant for an earlier log of this name
    NOT_A_REPLICA = "not-a-replica"  # the node does not keep this log
    UNKNOWN_REPLICA = "unknown-replica"  # the id is unknown, or was replaced since
    CHECK_CODE = "check-code"  # the id belongs to another copy
    NO_MASTER = "no-master"
    NOT_MASTER = "not-master"
    STALE_MASTER_EPOCH = "stale-master-epoch"
    STALE_SET_EPOCH = "stale-set-epoch"
    MASTER_NOT_IN_SET = "master-not-in-set"
    NOT_REGISTERED = "not-registered"
    NOT_ALIVE = "not-alive"
    LEARNER = "learner"
    LOST_RECORDS = "lost-records"  # the copy had confirmed more than it holds
    NOT_ELECTABLE = "not-electable"  # the copy lacks what a master needs: state, or records
    NO_ELIGIBLE_REPLICA = "no-eligible-replica"
    NODE_ALIVE = "node-alive"  # the metadata of a living node stay
    LAST_IN_SYNC = "last-in-sync"  # too few replicas in sync would remain


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """reason: for programs; detail: for people. errors: the refused fields of the command, as (JSON pointer,
    detail); an earlier version sends none."""

    reason: Reason
    detail: str
    errors: tuple[tuple[str, str], ...] = ()


class Done(msgspec.Struct, frozen=True, array_like=True):
    """The command was carried out: the metadata contain it from `index` on.

    created: a new log was created. value: the replica id that was applied for; of a registration, the epoch
    of which that copy is master, 0 for none. everywhere: the answer waits, briefly, until every living node
    has carried the change out.
    """

    index: int
    created: bool = False
    value: int | None = None
    everywhere: bool = False


class Refused(Exception):
    """Refusal of a decision; becomes a Refusal."""

    def __init__(self, reason: Reason, detail: str, errors: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(detail)
        self.refusal = Refusal(reason, detail, tuple(errors))
