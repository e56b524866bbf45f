"""Calls that the active controller decides: sent over the connections of the nodes, answered here."""

from typing import Final

from fastapi import Request

from app.api.http.dependencies import is_here_only
from app.controller.commands import AnyCommand, ChangeLog, CreateLog, Done, Reason, Refusal
from app.errors import (
    CommitlogError,
    ConfigChanged,
    Internal,
    InvalidRequest,
    LastInSync,
    LogDeleting,
    LogExists,
    LogNotFound,
    NodeAlive,
    NoEligibleReplica,
    NoLeader,
    NotFound,
    NotLeader,
)
from app.node.broker import Broker
from app.node.hosting.log_lookup import REMOVED

_AS_SUCH: Final[dict[Reason, type[CommitlogError]]] = {
    Reason.LOG_EXISTS: LogExists,
    Reason.CONFIG_CHANGED: ConfigChanged,
    Reason.OTHER_GENERATION: ConfigChanged,  # deleted and created again meanwhile
    Reason.NO_ELIGIBLE_REPLICA: NoEligibleReplica,
    Reason.NOT_A_REPLICA: NotFound,
    Reason.NODE_ALIVE: NodeAlive,
    Reason.LAST_IN_SYNC: LastInSync,
}
_INVALID: Final = {
    Reason.CONFIGURED_LOG: "/path/log",
    Reason.WRONG_MODE: "/path/log",
    Reason.INVALID: "",
}


async def decided(request: Request, broker: Broker, command: AnyCommand) -> Done:
    """Return the active controller's answer when it carried the command out; this node then knows the result.

    Raises NotLeader for a call that must not be forwarded, QuorumTimeout without an answer, NoLeader at a
    node that was removed, and the controller's refusal.
    """
    if broker.metadata.hosted.removed:  # it would not know the result
        raise NoLeader(REMOVED)
    if is_here_only(request) and not broker.metadata.server.is_active:
        active = broker.nodes.find(broker.metadata.hosted.leader_id or "")
        raise NotLeader(None) if active is None else NotLeader(active.id, active.url)
    return await carried_out(broker, command)


async def carried_out(broker: Broker, command: AnyCommand) -> Done:
    """As `decided`, for a call that another node may have forwarded here."""
    answer = await broker.metadata.ask(command)
    if isinstance(answer, Refusal):
        raise _refusal(command, answer)
    return answer


def _refusal(command: AnyCommand, refusal: Refusal) -> CommitlogError:
    log = command.log
    if refusal.reason is Reason.UNKNOWN_LOG:
        return LogNotFound(log)
    if refusal.reason is Reason.LOG_DELETING:
        return LogDeleting(log)
    if refusal.reason in _INVALID:
        has_settings = isinstance(command, CreateLog | ChangeLog)  # in its body
        errors = refusal.errors if has_settings else ()
        return InvalidRequest(*(errors or [(_INVALID[refusal.reason], refusal.detail)]))
    kind = _AS_SUCH.get(refusal.reason)
    return Internal(refusal.detail) if kind is None else kind(refusal.detail)
