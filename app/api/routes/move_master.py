"""`leader:transfer` of a log in controller mode: the controllers elect the named member of the set (C-05).

The master answers, as it knows how far each slave is. The election is clean: the target is in the
SyncStateSet. It begins only when the target lacks little, so that few appends have an unknown outcome.
"""

from collections.abc import Sequence
from typing import Final

from starlette.responses import Response

from app.api.http.dependencies import json_answer
from app.api.http.log_call import LogCall, Served
from app.controller.commands import ElectMaster, Refusal
from app.controller.metadata import Log
from app.errors import AlreadyLeader, LogNotFound, QuorumTimeout, TransferFailed
from app.log.contract import PeerStatus
from app.node.hosted_log import HostedLog

_POLL_S: Final = 0.02


def transfer_target(log: Log, peers: Sequence[PeerStatus], to: str | None) -> str:
    """Return the node that becomes master: `to`, or the member of the set that lacks least.

    peers: the slaves as the master knows them. Raises AlreadyLeader, and TransferFailed for a node that no
    clean election can make master.
    """
    if to is not None and to == log.master_node:
        raise AlreadyLeader(to)
    members = set(log.set_nodes)
    able = {
        peer.id: peer.lag_bytes
        for peer in peers
        if peer.id in members and peer.in_sync and peer.lag_bytes is not None
    }
    if to is None:
        if not able:
            raise TransferFailed("the SyncStateSet has no other member that is connected")
        return min(able, key=lambda node: (able[node], log.spec.preference(node)))
    if to not in log.nodes:
        raise TransferFailed(f"{to} keeps no replica of this log")
    if log.is_learner(to):
        raise TransferFailed(f"{to} is a learner, which is never elected")
    if to not in able:
        raise TransferFailed(f"{to} is not in the SyncStateSet, or not connected to the master")
    return to


async def move_master(call: LogCall, hosted: HostedLog, to: str | None) -> Response:
    """Let the controllers elect `to`, None for the best, and answer when it is master.

    Raises TransferFailed, AlreadyLeader, NoLeader, LogNotFound.
    """
    broker = call.broker

    async def act(here: Served) -> Response:
        await broker.waits.read_index(broker.metadata.hosted)  # the newest epoch and set
        before = broker.metadata.log(hosted.name)
        if before is None:
            raise LogNotFound(hosted.name)
        target = await _caught_up_target(here, before, to)
        command = ElectMaster(hosted.name, target, False, before.master_epoch, before.generation)
        try:
            answer = await broker.metadata.ask(command)
        except QuorumTimeout as error:
            raise TransferFailed(f"the election of {target} was not confirmed: {error}") from error
        if isinstance(answer, Refusal):
            raise TransferFailed(answer.detail)
        after = broker.metadata.log(hosted.name)
        if after is None or after.master_epoch <= before.master_epoch or after.master_node != target:
            raise TransferFailed(f"{target} was not elected, or has lost leadership since")
        deadline_ms = broker.clock.monotonic_ms() + broker.settings.controller.broker_timeout_ms
        while here.driver.leader_id != target and broker.clock.monotonic_ms() < deadline_ms:
            await hosted.leadership_changed(_POLL_S)
        return json_answer({"log": hosted.name, "leader": target, "term": after.master_epoch})

    return await call.at_leader(hosted, act)


async def _caught_up_target(here: Served, log: Log, to: str | None) -> str:
    """The target, once it lacks at most one window. Raises what transfer_target raises."""
    clock, config = here.broker.clock, here.broker.settings.ha
    deadline_ms = clock.monotonic_ms() + config.ha_max_time_slave_not_catchup_ms
    while True:
        peers = here.driver.status().core.peers
        target = transfer_target(log, peers, to)
        lag_bytes = next((peer.lag_bytes or 0 for peer in peers if peer.id == target), 0)
        if lag_bytes <= config.ha_window_bytes:
            return target
        if clock.monotonic_ms() >= deadline_ms:
            raise TransferFailed(
                f"{target} lacks {lag_bytes} bytes; a transfer needs at most {config.ha_window_bytes}"
            )
        await here.hosted.leadership_changed(_POLL_S)
