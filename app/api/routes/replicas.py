"""Changes of the nodes that keep a log: of all of them at once, or of one (docs/operations.md).

In controller mode the controllers decide (app/controller/replica_changes.py). In Raft mode the log's own
members change, one after another (R-10); the settings follow when they are as wanted.
"""

import secrets
from typing import Annotated, Final

from fastapi import APIRouter, Path, Query
from pydantic import Field
from starlette.responses import Response

from app.api.http.controller_calls import decided
from app.api.http.dependencies import json_answer
from app.api.http.log_call import Act, Call, LogCall, Served
from app.api.http.openapi import OF_A_COMMIT, answers
from app.api.read.query import OneLogQuery
from app.controller.commands import ChangeReplica, ReplicaChange
from app.errors import ChangeInProgress, InvalidRequest, NoLeader, NotCaughtUp, NotFound, QuorumTimeout
from app.log.commands import ChangeMembers
from app.log.contract import ChangeKind, GroupConfig
from app.log.state import Address
from app.names import KNOWN_NODE_ID
from app.node.broker import Broker
from app.node.hosted_log import HostedLog
from app.raft.membership import next_change
from app.settings.model import Replication

router = APIRouter(tags=["cluster"])

NodeId = Annotated[str, Path(pattern=KNOWN_NODE_ID.anchored, examples=["n3"])]
OF_REPLICAS: Final = ("last-in-sync", "log-deleting", "config-changed")
_CHANGES_MS: Final = 8_000  # of one call that changes the members of a Raft log; then it is to be repeated
_POLL_S: Final = 0.05
VOTER: Final = "voter"  # roles of a node in a log
LEARNER: Final = "learner"
LEAVING: Final = "leaving"


class ForcedQuery(OneLogQuery):
    force: bool = Field(
        False,
        description="Controller mode: act at once, also on a live node or on the last copy in sync. Records "
        "that only this copy holds are lost.",
    )


class CleanQuery(ForcedQuery):
    log: str | None = Field(None, description="Only this log. Default: every log in controller mode")


Forced = Annotated[ForcedQuery, Query()]
Clean = Annotated[CleanQuery, Query()]


async def change_replica(
    call: LogCall, hosted: HostedLog, node: str, change: ReplicaChange, *, force: bool = False
) -> None:
    """Let the controllers change one replica of a log in controller mode, which the query names. Raises
    InvalidRequest for a log in another mode, and what `decided` raises."""
    if hosted.settings.replication is not Replication.CONTROLLER:
        raise InvalidRequest(("/query/log", f"log {hosted.name!r} is not in controller mode"))
    command = ChangeReplica(hosted.name, node, change, secrets.token_hex(16), hosted.generation, force)
    await decided(call.request, call.broker, command)


@router.post(
    "/v1/cluster/members/{id}:clean",
    summary="Remove the metadata of a dead node",
    description="The replicas of a dead node are removed from logs in controller mode at once: nothing waits "
    "for them any more. `node-alive` refuses a node that is alive, `last-in-sync` one that has the last copy "
    "in sync; `force` overrides both. Raft logs: remove the member.",
    responses=answers(
        "node-alive",
        *OF_REPLICAS,
        *OF_A_COMMIT,
        example={"node": "n3", "logs": ["orders"]},
        of_a_log=False,
    ),
    response_class=Response,
)
async def clean_member(call: Call, id: NodeId, query: Clean) -> Response:
    call.wants_json()
    await call.refuse_fields()
    broker = call.broker
    if query.log is not None:
        found = [broker.lookup.find(query.log, "/query/log")]
    else:
        found = [hosted for hosted in broker.logs.values() if id in replica_nodes(broker, hosted)]
    for hosted in found:
        await change_replica(call, hosted, id, ReplicaChange.CLEAN, force=query.force)
    if not found:
        raise NotFound(f"{id} keeps no replica of a log in controller mode")
    return json_answer({"node": id, "logs": [hosted.name for hosted in found]})


def replica_nodes(broker: Broker, hosted: HostedLog) -> tuple[str, ...]:
    """The nodes that keep a log in controller mode; none of a log in another mode."""
    if hosted.settings.replication is not Replication.CONTROLLER:
        return ()
    log = broker.metadata.log(hosted.name)
    return hosted.settings.replicas if log is None else log.nodes


def role_of(broker: Broker, hosted: HostedLog, node: str) -> str | None:
    """The role of a node in a log of Raft or controller mode, None without a replica. LEAVING: it acts as a
    replica until the log can do without it."""
    log = broker.metadata.log(hosted.name)
    if hosted.settings.replication is Replication.RAFT or log is None:
        return VOTER if node in hosted.voters else LEARNER if node in hosted.members else None
    if node in log.leaving:
        return LEAVING
    return VOTER if node in log.voters else LEARNER if node in log.nodes else None


# --- all nodes of a log -----------------------------------------------------------------------------------


def brokers_now(broker: Broker) -> tuple[str, ...]:
    """The nodes that may keep new logs: those of the file that were not removed, then those that were added.

    Every node is a member of the metadata's log. Where its voters are the brokers themselves, a learner is a
    node that was added and does not count yet.
    """
    settings, group = broker.settings, broker.metadata.hosted.group
    members = group.members if settings.controller.nodes else group.voters
    added = [node for node in members if node not in (*settings.brokers, *settings.controller.nodes)]
    return (*(node for node in settings.brokers if node in members), *added)


def fewest_logs(broker: Broker) -> dict[str, tuple[int, int]]:
    """The nodes that may keep logs, each with its rank: those that keep the fewest are first."""
    brokers = brokers_now(broker)
    kept = dict.fromkeys(brokers, 0)
    for hosted in broker.logs.values():
        for node in hosted.settings.replicas:
            kept[node] = kept.get(node, 0) + 1
    return {node: (kept[node], place) for place, node in enumerate(brokers)}


def wanted_nodes(broker: Broker, hosted: HostedLog, asked: int | tuple[str, ...]) -> tuple[str, ...]:
    """The nodes that a change names, or so many: those that keep the log stay, the ones in sync first.

    Raises InvalidRequest.
    """
    if not isinstance(asked, int):
        return asked
    ranks, current = fewest_logs(broker), hosted.members
    most = len(ranks.keys() | set(current))
    if asked > most:
        raise InvalidRequest(
            ("/replicas", f"must be at most {most}, the number of nodes that keep logs, got {asked}")
        )
    log = broker.metadata.log(hosted.name)
    in_sync = () if log is None else log.set_nodes
    staying = sorted(current, key=lambda node: (node not in in_sync, node in hosted.settings.learners))
    kept = [node for node in current if node in staying[:asked]]
    others = sorted((node for node in ranks if node not in kept), key=lambda node: ranks[node])
    return (*kept, *others[: asked - len(kept)])


async def change_members_at_leader(call: Call, hosted: HostedLog, act: Act) -> Response:
    """As LogCall.at_leader, for `act` that changes several members: the next leader continues it. Raises
    QuorumTimeout if no leader is found after a part of it was applied."""
    before = hosted.group
    try:
        return await call.at_leader(hosted, act)
    except NoLeader as error:
        if hosted.group != before:
            raise QuorumTimeout(None, "a part of the members has changed: send the call again") from error
        raise


async def change_members(here: Served, wanted: GroupConfig) -> None:
    """Change the members of a Raft log that is led here, one after another, until they are as wanted.

    May be repeated: it continues where it was. Raises NotCaughtUp or ChangeInProgress when that takes longer
    than _CHANGES_MS, ChangeInProgress also while another call changes them; NotLeader, NoLeader,
    WouldLoseQuorum, InvalidRequest, QuorumTimeout.
    """
    with here.hosted.changing_members():
        await _change_one_by_one(here, wanted)


async def _change_one_by_one(here: Served, wanted: GroupConfig) -> None:
    broker = here.broker
    deadline_ms = broker.clock.monotonic_ms() + _CHANGES_MS
    while True:
        change = next_change(here.hosted.group, wanted, broker.node.id)
        if change is None:
            return
        await here.confirm()  # as for a single change (members.py)
        try:
            await here.commit(ChangeMembers(*change, *_address(broker, *change)))
        except (NotCaughtUp, ChangeInProgress):
            if broker.clock.monotonic_ms() >= deadline_ms:
                raise
            await broker.waits.pause(_POLL_S)


def _address(broker: Broker, kind: ChangeKind, node_id: str) -> tuple[Address, ...]:
    """The address that an added member needs. Raises InvalidRequest for a node that is not known here."""
    if kind is not ChangeKind.ADD:
        return ()
    node = broker.nodes.find(node_id)
    if node is None:
        raise InvalidRequest(("/replicas", f"no such node: {node_id}; add it to the cluster first"))
    return (Address(node.url, node.peer_address),)
