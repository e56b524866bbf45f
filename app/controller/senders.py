"""The node that may send a command to the controllers.

The connections prove the sender. A node may send commands about its own copies only: otherwise one node that
is confused, or whose secret was stolen, could register, remove or retire the copy of another one.
"""

from app.controller.commands import (
    AlterSyncStateSet,
    AnyCommand,
    ApplyForReplicaId,
    RegisterReplica,
    StepDown,
)
from app.controller.state_machine import Metadata


def only_sender_of(metadata: Metadata, command: AnyCommand) -> str | None:
    """Return the only node that may send `command`; None when every node may (an operator's command), or when
    the metadata do not know the copy: then the decision refuses it."""
    if isinstance(command, ApplyForReplicaId | RegisterReplica):
        return command.node
    if isinstance(command, AlterSyncStateSet | StepDown):
        log = metadata.log(command.log)
        copy = None if log is None or log.generation != command.generation else log.replica(command.master)
        return None if copy is None else copy.node
    return None
