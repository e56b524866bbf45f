"""Members of the cluster and leadership of its logs: add, promote, remove, transfer (C-05, R-09, R-10)."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from app.api.http.dependencies import Nothing, json_answer
from app.api.http.json_decoding import Name
from app.api.http.leader_headers import COMMITTED_INDEX
from app.api.http.log_call import Act, Call, Served
from app.api.http.openapi import OF_A_BODY, OF_A_COMMIT, answers, json_request, schema_of
from app.api.read.query import OneLogQuery
from app.api.routes.move_master import move_master
from app.api.routes.replicas import (
    LEARNER,
    LEAVING,
    OF_REPLICAS,
    VOTER,
    Forced,
    change_replica,
    replica_nodes,
    role_of,
)
from app.controller.commands import ReplicaChange
from app.controller.metadata import CONTROLLER_LOG
from app.controller.settings_of_logs import FIXED_ROLES
from app.errors import (
    ChangeInProgress,
    InvalidRequest,
    LogDeleting,
    NoLeader,
    NotFound,
    QuorumTimeout,
    Repairing,
    TransferFailed,
)
from app.log.commands import ChangeMembers, check_address
from app.log.contract import ChangeKind, PeerStatus
from app.log.state import Address
from app.media_types import JSON
from app.names import KNOWN_NODE_ID, NODE_ID
from app.node.broker import Broker
from app.node.hosted_log import HostedLog
from app.settings.addresses import base_url, split_address
from app.settings.model import Replication
from app.version import VERSION

router = APIRouter(tags=["cluster"])

MemberId = Annotated[str, Path(pattern=KNOWN_NODE_ID.anchored, examples=["n4"])]
MEMBER_EXAMPLE: Final = {
    "id": "n4",
    "url": "http://127.0.0.1:8104",
    "peer_address": "127.0.0.1:9104",
    "voter": False,
    "alive": True,
    "version": VERSION,
}
_CHANGED_EXAMPLE: Final = {"members": [MEMBER_EXAMPLE | {"role": "learner"}]}


def _changed() -> dict[str, Any]:
    """Return the content of the answer to a change: `role` is of a change of one log, null without a
    replica."""
    schema = schema_of(_CHANGED_EXAMPLE)
    member = schema["properties"]["members"]["items"]
    member["required"].remove("role")
    member["properties"]["role"] = {"type": ["string", "null"], "enum": [VOTER, LEARNER, LEAVING, None]}
    return {JSON: {"schema": schema, "example": _CHANGED_EXAMPLE}}


_CHANGED: Final = _changed()
_TRANSFER_POLL_S: Final = 0.05
_LEARN_S: Final = 1.0
_LEAVING_POLL_S: Final = 0.02
_CHANGE_POLL_S: Final = 0.05
_REFUSALS: Final = ("change-in-progress", "not-caught-up", "would-lose-quorum", *OF_A_COMMIT)


OneLog = Annotated[OneLogQuery, Query()]


class MemberIn(msgspec.Struct, forbid_unknown_fields=True):
    """url: base URL of the node. peer_address: host:port at which the other nodes reach it."""

    id: Name
    url: Name
    peer_address: Name


class TransferIn(msgspec.Struct, forbid_unknown_fields=True):
    """to: voter that becomes leader, in controller mode the member of the SyncStateSet that becomes master;
    absent: the most up-to-date one."""

    to: Name | None = None
    log: Name = "default"


def member_objects(broker: Broker, of: HostedLog | None = None) -> list[dict[str, Any]]:
    """Every known node as docs/api.md §2 shows it. voter: of some log, by the newest group that is known
    here. alive: connected to this node, and listed by the answers of the active controller. of: the log that
    the call names; each node then has its role in it."""
    voters = {
        node
        for hosted in broker.logs.values()
        for node in hosted.voters
        if role_of(broker, hosted, node) in (VOTER, LEAVING)
    }
    members = []
    for node_id, address in known_addresses(broker).items():
        is_this = node_id == broker.node.id
        version = VERSION if is_this else broker.transport.peer_version(node_id)
        members.append(
            {
                "id": node_id,
                "url": address.url,
                "peer_address": address.peer_address,
                "voter": node_id in voters,
                "alive": is_this or (version is not None and not broker.metadata.is_silent(node_id)),
                "version": version,
                **({} if of is None else {"role": role_of(broker, of, node_id)}),
            }
        )
    return members


def known_addresses(broker: Broker) -> dict[str, Address]:
    """Return the addresses of every known node, also of one that a log names and that this node has not yet
    tried to reach."""
    known = {node.id: Address(node.url, node.peer_address) for node in broker.nodes}
    for hosted in broker.logs.values():
        if hosted.driver is not None:
            for node_id, address in hosted.driver.addresses.items():
                known.setdefault(node_id, address)
    return known


@router.get(
    "/v1/cluster/members",
    summary="List the nodes of the cluster",
    responses=answers(example={"members": [MEMBER_EXAMPLE]}, of_a_log=False),
    response_class=Response,
)
async def members(call: Call, query: Nothing) -> Response:
    call.wants_json()
    await call.of_a_member()
    return _members_answer(call.broker)


def _members_answer(broker: Broker, of: HostedLog | None = None) -> Response:
    return json_answer({"members": member_objects(broker, of)})


@router.post(
    "/v1/cluster/members",
    summary="Add a node as a learner",
    description="A learner receives the log and does not vote. A log has one membership change at a time.",
    responses=answers(*_REFUSALS, *OF_A_BODY, content=_CHANGED, of_a_log=False),
    openapi_extra=json_request(
        MemberIn, {"id": "n4", "url": "http://127.0.0.1:8104", "peer_address": "127.0.0.1:9104"}
    ),
    response_class=Response,
)
async def add_member(call: Call, query: OneLog) -> Response:
    call.wants_json()
    asked = await call.asked(MemberIn)
    address = checked_address(asked)
    check_address(asked.id, address, taken_addresses(call.broker, asked.id, address))
    change = ChangeMembers(ChangeKind.ADD, asked.id, address)
    return await _change(call, query.log, change, ReplicaChange.ADD)


@router.post(
    "/v1/cluster/members/{id}:promote",
    summary="Promote a learner to voter",
    responses=answers(*_REFUSALS, content=_CHANGED, of_a_log=False),
    response_class=Response,
)
async def promote_member(call: Call, id: MemberId, query: OneLog) -> Response:
    call.wants_json()
    await call.refuse_fields()
    change = ChangeMembers(ChangeKind.PROMOTE, id)
    return await _change(call, query.log, change, ReplicaChange.PROMOTE)


@router.post(
    "/v1/cluster/members/{id}:demote",
    summary="Make a replica a learner",
    description="Controller mode only. The replica leaves the SyncStateSet as soon as the log can do without "
    "it, and still receives the log.",
    responses=answers(*OF_REPLICAS, *OF_A_COMMIT, content=_CHANGED, of_a_log=False),
    response_class=Response,
)
async def demote_member(call: Call, id: MemberId, query: OneLog) -> Response:
    call.wants_json()
    await call.refuse_fields()
    if query.log is None:
        raise InvalidRequest(("/query/log", "name the log in controller mode whose replica is demoted"))
    hosted = call.broker.lookup.find(query.log, "/query/log")
    return await _change_replica(call, hosted, id, ReplicaChange.DEMOTE)


@router.delete(
    "/v1/cluster/members/{id}",
    summary="Remove a node",
    description="Without `log` the node leaves every Raft log and then the log of the metadata. It stays in "
    "that log while it has replicas of logs in controller or classic mode. A leader transfers its leadership "
    "once its removal is committed. Of a log in controller mode the replica leaves once the log can do "
    "without it; `last-in-sync` refuses one without which too few in-sync replicas would be left.",
    responses=answers(*_REFUSALS, *OF_REPLICAS, content=_CHANGED, of_a_log=False),
    response_class=Response,
)
async def remove_member(call: Call, id: MemberId, query: Forced) -> Response:
    call.wants_json()
    await call.refuse_fields()
    change = ChangeMembers(ChangeKind.REMOVE, id)
    return await _change(call, query.log, change, ReplicaChange.REMOVE, force=query.force)


async def _change(
    call: Call, log: str | None, change: ChangeMembers, of_replica: ReplicaChange, *, force: bool = False
) -> Response:
    """The change in one log, or in each Raft log in turn; the first refusal ends it. of_replica, force: the
    same of a log in controller mode."""
    broker = call.broker
    one = None if log is None else broker.lookup.find(log, "/query/log", deleting=True)
    if one is not None and one.settings.replication is Replication.CONTROLLER:
        return await _change_replica(call, one, change.node_id, of_replica, force=force)
    if one is not None and one.settings.replication is Replication.CLASSIC:  # its master may wait for long
        raise InvalidRequest(("/query/log", FIXED_ROLES))
    if force:
        raise InvalidRequest(("/query/force", "is of logs in controller mode; name one with `log`"))

    async def act(here: Served) -> Response:
        with here.hosted.changing_members():
            await _commit(here, change)
        return here.answer({"members": member_objects(broker, one)})

    if one is not None:
        return await _at_leader(call, one, change, act)
    found = change.kind is ChangeKind.ADD
    for hosted in logs_of_the_change(broker, change):
        try:
            answer = await _at_leader(call, hosted, change, act, b"log=" + quote(hosted.name).encode())
        except NotFound:
            continue
        if answer.status_code == NotFound.http_status:
            continue  # the node is not a member of that log
        if answer.status_code != 200:
            return answer
        await _learn(broker, hosted, answer)
        found = True
    if not found:
        raise NotFound(f"{change.node_id} is not a member of any log")
    return _members_answer(broker)


async def _at_leader(
    call: Call, hosted: HostedLog, change: ChangeMembers, act: Act, query: bytes = b""
) -> Response:
    """As LogCall.at_leader. Raises QuorumTimeout if no leader is found for the second step of a removal: the
    first one may have been applied."""
    was_voter = change.node_id in hosted.voters
    try:
        return await call.at_leader(hosted, act, query)
    except NoLeader as error:
        if was_voter and change.node_id not in hosted.voters:
            detail = f"{change.node_id} became a learner, and no leader has removed it: send the call again"
            raise QuorumTimeout(None, detail) from error
        raise


async def _commit(here: Served, change: ChangeMembers) -> None:
    """Commit one change, once a majority has confirmed the leader: if only a leader that is cut off held the
    record, the others might elect none. One of two voters is removed in two steps (app/raft/membership.py):
    the second one, of a learner, waits for the first one, which another leader may have begun.

    Raises CommitlogError.
    """
    broker = here.broker
    deadline_ms = broker.clock.monotonic_ms() + broker.settings.http.leader_wait_ms
    while True:
        await here.confirm()
        try:
            await here.commit(change)
        except ChangeInProgress:
            is_second = change.kind is ChangeKind.REMOVE and change.node_id in here.hosted.group.learners
            if not is_second or broker.clock.monotonic_ms() >= deadline_ms:
                raise
            await broker.waits.pause(_CHANGE_POLL_S)
        else:
            if change.kind is not ChangeKind.REMOVE or change.node_id not in here.hosted.group.members:
                return


async def _change_replica(
    call: Call, hosted: HostedLog, node: str, change: ReplicaChange, *, force: bool = False
) -> Response:
    """The change of one replica in controller mode. The answer waits a moment for a node that is leaving, so
    that it has the new role."""
    broker = call.broker
    await change_replica(call, hosted, node, change, force=force)
    with suppress(TimeoutError):
        async with asyncio.timeout(_LEARN_S):
            while role_of(broker, hosted, node) == LEAVING:
                await broker.waits.pause(_LEAVING_POLL_S)
    return _members_answer(broker, hosted)


async def _learn(broker: Broker, hosted: HostedLog, answer: Response) -> None:
    """Wait until this node has what the leader had committed at its answer, so that the list of members shows
    the change. A node that the change removes does not learn of it: the wait has a limit."""
    committed = answer.headers.get(COMMITTED_INDEX.decode())
    if committed is not None and hosted.serving is not None:
        with suppress(Repairing, LogDeleting):
            await broker.waits.committed(hosted, int(committed), _LEARN_S)


def logs_of_the_change(broker: Broker, change: ChangeMembers) -> list[HostedLog]:
    """The logs that a change without a log concerns, the metadata's own as the last one.

    A node that keeps replicas of logs in controller or classic mode needs the metadata: it stays a member of
    their log until a call names that log. Raises InvalidRequest when no other log is left to change.
    """
    logs = list(broker.logs.values())
    chosen = [hosted for hosted in logs if hosted.settings.replication is Replication.RAFT]
    if change.kind is ChangeKind.ADD:
        chosen = [hosted for hosted in chosen if hosted.driver is not None]
    else:
        chosen = [hosted for hosted in chosen if hosted.driver is None or change.node_id in hosted.members]
    metadata = broker.metadata.hosted
    concerned = change.kind is ChangeKind.ADD or change.node_id in metadata.members
    if broker.settings.controller.nodes or not concerned:
        return chosen  # controllers on nodes of their own: their group does not change with the brokers
    needing = [
        hosted.name
        for hosted in logs
        if hosted.settings.replication is not Replication.RAFT
        and change.node_id in (*hosted.settings.replicas, *replica_nodes(broker, hosted))
    ]
    if change.kind is not ChangeKind.REMOVE or not needing:
        return [*chosen, metadata]
    if not chosen:
        raise InvalidRequest(
            (
                "/query/log",
                f"{change.node_id} keeps replicas of {', '.join(needing)}; this call does not change "
                f"their members. With log={CONTROLLER_LOG} it leaves only the group of the metadata",
            )
        )
    return chosen


def checked_address(asked: MemberIn) -> Address:
    """Return the address of a new member. Raises InvalidRequest."""
    if NODE_ID.pattern.fullmatch(asked.id) is None:
        raise InvalidRequest(("/id", NODE_ID.refusal(asked.id)))
    try:
        url = base_url(asked.url)
    except ValueError as error:
        raise InvalidRequest(("/url", str(error))) from error
    try:
        split_address(asked.peer_address)
    except ValueError as error:
        raise InvalidRequest(("/peer_address", str(error))) from error
    return Address(url, asked.peer_address)


def taken_addresses(broker: Broker, new_id: str, address: Address) -> dict[str, Address]:
    """Return `known_addresses` without that of `new_id` unless it is a member of a log: a node that only the
    configuration names may be added with another address. The logs change one after another: `address` is
    that of `new_id` as soon as one of them names it."""
    known = known_addresses(broker)
    logs = (*broker.logs.values(), broker.metadata.hosted)
    if any(log.driver is not None and log.driver.addresses.get(new_id) == address for log in logs):
        known[new_id] = address
    elif not any(new_id in hosted.members for hosted in logs):
        known.pop(new_id, None)
    return known


def not_taken_over(target: str, peers: Sequence[PeerStatus], longest_ms: int) -> TransferFailed:
    """peers: as the leader knows them, which names the cause."""
    is_full = any(peer.id == target and not peer.has_room for peer in peers)
    cause = f": the disk of {target} is full" if is_full else ""
    return TransferFailed(f"{target} did not become leader within {longest_ms} ms{cause}")


@router.post(
    "/v1/cluster/leader:transfer",
    summary="Transfer the leadership of a log",
    description="Appends continue while the target voter catches up. They wait only during the election. In "
    "controller mode the controllers elect the target, a member of the SyncStateSet.",
    responses=answers(
        "transfer-failed",
        "already-leader",
        "no-leader",
        *OF_A_BODY,
        example={"log": "default", "leader": "n2", "term": 8},
    ),
    openapi_extra=json_request(TransferIn, {"to": "n2", "log": "default"}),
    response_class=Response,
)
async def transfer(call: Call, query: Nothing) -> Response:
    call.wants_json()
    asked = await call.asked(TransferIn)
    broker, hosted = call.broker, call.broker.lookup.find(asked.log, "/log")
    if hosted.settings.replication is Replication.CONTROLLER:
        return await move_master(call, hosted, asked.to)

    async def act(here: Served) -> Response:
        driver = here.driver
        target = driver.transfer(asked.to)
        term = driver.term
        raft = broker.settings.raft
        longest_ms = raft.transfer_catch_up_ms + 2 * raft.election_timeout_ms[1]
        deadline_ms = broker.clock.monotonic_ms() + longest_ms
        while driver.leader_id != target:
            if broker.clock.monotonic_ms() >= deadline_ms or (hosted.leads and not driver.is_transferring):
                raise not_taken_over(target, driver.status().core.peers, longest_ms)
            await hosted.leadership_changed(_TRANSFER_POLL_S)
        return json_answer({"log": asked.log, "leader": target, "term": max(driver.term, term)})

    return await call.at_leader(hosted, act)
