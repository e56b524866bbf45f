"""Management of logs: list, settings, creation, change and deletion (docs/api.md §5)."""

import secrets
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from app.api.access.caller import Scope
from app.api.access.rules import caller_of
from app.api.http.controller_calls import carried_out, decided
from app.api.http.dependencies import LogName, Nothing, json_answer
from app.api.http.leader_headers import log_headers
from app.api.http.log_call import Call, Served
from app.api.http.openapi import ETAG, LOCATION, LOG_EXAMPLE, OF_A_BODY, OF_A_COMMIT, answers, json_request
from app.api.http.preconditions import wanted_version
from app.api.http.query import Query as QueryModel
from app.api.routes.replicas import (
    brokers_now,
    change_members,
    change_members_at_leader,
    fewest_logs,
    wanted_nodes,
)
from app.api.tables.known_jobs import job_of, known_jobs
from app.controller.commands import ChangeLog, CreateLog, DeleteLog
from app.controller.metadata import AUDIT_LOG, LOG_CREATED, LOG_DELETING, PRIORITY_MAX, Log, LogSpec
from app.controller.settings_of_logs import complaint_about_version, complaints_about, whole_changes
from app.errors import ConfigChanged, InvalidRequest, LogExists
from app.log.contract import GroupConfig
from app.names import LOG_NAME
from app.node.broker import Broker
from app.node.hosted_log import CONFIGURED, HostedLog
from app.settings.model import DEFAULT_LOG, Replication

router = APIRouter(tags=["logs"])

PositiveInt64 = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
NodeIds = tuple[str, ...]
Priorities = dict[str, Annotated[int, msgspec.Meta(ge=0, le=PRIORITY_MAX)]]
_NEW_LOG: Final = {**LOG_EXAMPLE, "name": "orders"}
_ENDS: Final = {"begin_index": 0, "committed_index": 44, "term": 7, "events": 18}
_LISTED_LOG: Final = {**LOG_EXAMPLE, "tables_job": "running", "ends": _ENDS}
UNSUPPORTED: Final = "unsupported"  # as a log's state
FIXED_MASTER: Final = ("/preferred", "a log in classic mode has a fixed master, the first of its replicas")
_NO_VERSION: Final = 0  # the ETag of a log of the configuration file that the controllers do not know yet


class RetentionIn(msgspec.Struct, forbid_unknown_fields=True):
    """ms: maximum age by the record's timestamp. bytes: maximum size as stored. null: unlimited."""

    ms: PositiveInt64 | None = None
    bytes: PositiveInt64 | None = None


class LogIn(msgspec.Struct, forbid_unknown_fields=True):
    """name: checked by `check_name`, because `$` of a decoder's pattern also matches before a line break.
    replicas: number or nodes; absent: all nodes. Other fields: app/controller/metadata.py (LogSpec)."""

    name: Annotated[str, msgspec.Meta(extra_json_schema={"pattern": LOG_NAME.anchored})]
    replication: str = "raft"
    replicas: PositiveInt64 | NodeIds | None = None
    retention: RetentionIn | None = None
    durability: str = "fsync"
    learners: NodeIds = ()
    min_in_sync_replicas: PositiveInt64 = 1
    unclean: bool = False
    preferred: str | None = None
    priorities: Priorities = {}
    in_sync_replicas: PositiveInt64 | None = None


class LogChangeIn(msgspec.Struct, forbid_unknown_fields=True):
    """Absent fields are unchanged; name and replication are immutable.

    replicas, learners: the nodes wanted, or their number. In controller mode a replica that is taken out
    stays (`leaving`) until those that replace it are in sync; force: it is removed at once, whatever is lost.
    """

    durability: str | msgspec.UnsetType = msgspec.UNSET
    retention: RetentionIn | msgspec.UnsetType | None = msgspec.UNSET
    min_in_sync_replicas: PositiveInt64 | msgspec.UnsetType = msgspec.UNSET
    unclean: bool | msgspec.UnsetType = msgspec.UNSET
    preferred: str | msgspec.UnsetType | None = msgspec.UNSET
    priorities: Priorities | msgspec.UnsetType = msgspec.UNSET
    in_sync_replicas: PositiveInt64 | msgspec.UnsetType | None = msgspec.UNSET
    replicas: PositiveInt64 | NodeIds | msgspec.UnsetType = msgspec.UNSET
    learners: NodeIds | msgspec.UnsetType = msgspec.UNSET
    force: bool = False


class LogsQuery(QueryModel):
    ends: bool = Field(
        False,
        description="Add `ends` to each log: where it and its journal end at this node, `null` without a "
        "replica here; one call finds what is new in any number of logs",
    )


@router.get(
    "/v1/logs",
    summary="List the logs",
    description="`tables_job`: the state that the Spark job of the log's tables has last reported (`running`,"
    " `done`, `stopped`, `failed`); absent if the node finds none. `GET …/tables` has the whole report.",
    responses=answers(example={"logs": [_LISTED_LOG]}, of_a_log=False),
    response_class=Response,
)
async def logs(call: Call, query: Annotated[LogsQuery, Query()]) -> Response:
    call.wants_json()
    broker = call.broker
    if broker.metadata.hosted.removed:  # it does not know new logs
        await call.elsewhere(broker.metadata.hosted)
    caller = caller_of(call.request)
    jobs = await known_jobs(call.request).last()
    known = [
        {
            **_log_object(broker, hosted),
            **job_of(name, jobs),
            **({"ends": _ends(hosted)} if query.ends else {}),
        }
        for name, hosted in broker.logs.items()
        if name != AUDIT_LOG and caller.sees(name)
    ]
    foreign = [
        each
        for name, each in broker.metadata_logs.unsupported.items()
        if name not in broker.logs and caller.sees(name)
    ]
    none = {"ends": None} if query.ends else {}
    return json_answer({"logs": [*known, *({**_unsupported_object(each.log), **none} for each in foreign)]})


@router.post(
    "/v1/logs",
    status_code=201,
    summary="Create a log",
    description="201 for a new log; 200 if the log exists with the same settings. When the response "
    "arrives, every live node knows the log.",
    responses=answers(
        "log-exists",
        "log-deleting",
        *OF_A_COMMIT,
        *OF_A_BODY,
        example=_NEW_LOG,
        of_a_log=False,
        headers=(ETAG,),
    )
    | answers(example=_NEW_LOG, of_a_log=False, status=201, headers=(ETAG, LOCATION)),
    openapi_extra=json_request(LogIn, {"name": "orders", "replication": "controller", "replicas": 3}),
    response_class=Response,
)
async def create_log(call: Call, query: Nothing) -> Response:
    call.wants_json()
    broker, asked = call.broker, await call.asked(LogIn)
    check_name(asked.name)
    caller_of(call.request).require(frozenset((Scope.ADMIN,)), asked.name)
    spec = _spec_of(broker, asked)
    complaints = complaints_about(spec, [node.id for node in broker.nodes])
    if spec.learners and spec.replication == Replication.CLASSIC:  # a file may have them
        complaints.append(("/learners", "a log in classic mode has no learners: each slave counts"))
    if spec.preferred is not None and spec.replication == Replication.CLASSIC:
        complaints.append(FIXED_MASTER)
    if complaints:
        raise InvalidRequest(*complaints)
    known = broker.logs.get(asked.name)
    if known is not None and known.generation == CONFIGURED:
        if known.settings.spec != spec:
            names = known.settings.spec.names_of_other_settings(spec)
            raise LogExists(f"log {asked.name!r} is in the configuration file with other settings: {names}")
        return _log_answer(broker, known)
    done = await decided(call.request, broker, CreateLog(asked.name, spec, secrets.token_hex(16)))
    hosted = await broker.lookup.known(asked.name, broker.settings.http.leader_wait_ms)
    return _log_answer(broker, hosted, status=201 if done.created else 200)


@router.get(
    "/v1/logs/{log}",
    summary="Get the settings of a log",
    responses=answers(example=LOG_EXAMPLE, headers=(ETAG,)),
    response_class=Response,
)
async def one_log(call: Call, log: LogName, query: Nothing) -> Response:
    broker = call.broker
    await call.of_a_member()
    hosted = broker.lookup.find(log, deleting=True)
    call.wants_json()
    if hosted.removed:
        await call.elsewhere(hosted)
    return _log_answer(broker, hosted)


@router.patch(
    "/v1/logs/{log}",
    summary="Change the settings of a log",
    description=(
        "With `If-Match` the change applies only if the version is equal. When the response arrives, every "
        "live node has applied the change; with `replicated`, it syncs first until it has noted that on its "
        "disk. For a log of the configuration file, the newest change applies: "
        "the one made here or the one in the file. `replicas` and `learners` change the nodes that keep the "
        "log. In controller mode the response is sent at once, and `leaving` names the nodes that stay until "
        "the log can do without them. In Raft mode the members change before the response; "
        "`not-caught-up` and `change-in-progress` mean that the same call continues where it was."
    ),
    responses=answers(
        "config-changed",
        "change-in-progress",
        "not-caught-up",
        "would-lose-quorum",
        *OF_A_COMMIT,
        *OF_A_BODY,
        example=LOG_EXAMPLE,
        headers=(ETAG,),
    ),
    openapi_extra=json_request(LogChangeIn, {"retention": {"ms": 604_800_000}}),
    response_class=Response,
)
async def change_log(call: Call, log: LogName, query: Nothing) -> Response:
    broker, hosted = call.broker, call.broker.lookup.find(log)
    call.wants_json()
    asked = await call.asked(LogChangeIn)
    if asked.force and hosted.settings.replication is not Replication.CONTROLLER:
        raise InvalidRequest(("/force", "is of logs in controller mode"))
    if isinstance(asked.preferred, str) and hosted.settings.replication is Replication.CLASSIC:
        raise InvalidRequest(FIXED_MASTER)
    changes = {
        name: msgspec.to_builtins(value)
        for name in asked.__struct_fields__
        if name != "force" and not isinstance(value := getattr(asked, name), msgspec.UnsetType)
    }
    if not isinstance(asked.replicas, msgspec.UnsetType):
        changes["replicas"] = wanted_nodes(broker, hosted, asked.replicas)
    version = _version(call, hosted)
    command = ChangeLog(log, changes, secrets.token_hex(16), version, hosted.generation, asked.force)
    if hosted.settings.replication is Replication.RAFT and ("replicas" in changes or "learners" in changes):
        return await change_members_at_leader(call, hosted, lambda here: _change_members(here, command))
    await decided(call.request, broker, command)
    return _log_answer(broker, broker.lookup.find(log))


async def _change_members(here: Served, command: ChangeLog) -> Response:
    """Change the members of a Raft log, then its settings. A learner that the settings do not name as one,
    for it was added to prepare this change, becomes a voter."""
    broker, hosted, name = here.broker, here.hosted, here.hosted.name
    known = _metadata_of(broker, hosted)
    complaint = complaint_about_version(_version_of(broker, hosted), command.version)
    if complaint is not None:
        raise ConfigChanged(complaint)
    before = hosted.settings.spec if known is None else known.spec
    learners = tuple(node for node in before.learners if node in hosted.members)
    before = msgspec.structs.replace(before, replicas=hosted.members, learners=learners)
    changes = whole_changes(before, command.changes)
    after = msgspec.structs.replace(before, **changes)
    complaints = complaints_about(after, [*(node.id for node in broker.nodes), *hosted.members])
    if complaints:
        raise InvalidRequest(*complaints)
    voters = tuple(node for node in after.replicas if node not in after.learners)
    await change_members(here, GroupConfig(voters=voters, learners=after.learners))
    await carried_out(broker, msgspec.structs.replace(command, changes=changes))
    return _log_answer(broker, broker.lookup.find(name))


@router.delete(
    "/v1/logs/{log}",
    status_code=202,
    summary="Delete a log",
    description="The nodes of the log remove their replicas. Until that is complete, every call for the log "
    "is refused with `log-deleting`.",
    responses=answers("config-changed", *OF_A_COMMIT, example=LOG_EXAMPLE, status=202),
    response_class=Response,
)
async def delete_log(call: Call, log: LogName, query: Nothing) -> Response:
    broker, hosted = call.broker, _deletable(call, log)
    command = DeleteLog(log, _version(call, hosted), hosted.generation, secrets.token_hex(16))
    await decided(call.request, broker, command)
    return json_answer({**_log_object(broker, hosted), "state": LOG_DELETING}, status=202)


def _deletable(call: Call, log: str) -> HostedLog:
    """Return a log that may be deleted. Raises what LogCall.find raises; InvalidRequest for a log of the
    configuration file."""
    hosted = call.broker.lookup.find(log)
    if hosted.generation == CONFIGURED:
        raise InvalidRequest(
            (
                "/path/log",
                f"log {hosted.name!r} always exists"
                if hosted.name == DEFAULT_LOG
                else f"log {hosted.name!r} is in the configuration file: remove it there",
            )
        )
    call.wants_json()
    return hosted


def check_name(name: str) -> None:
    """Raise InvalidRequest for a name that no new log can have."""
    if LOG_NAME.pattern.fullmatch(name) is None:
        raise InvalidRequest(("/name", LOG_NAME.refusal(name)))


def _spec_of(broker: Broker, asked: LogIn) -> LogSpec:
    retention = None if asked.retention is None else msgspec.to_builtins(asked.retention)
    return LogSpec(
        replication=asked.replication,
        replicas=_replicas(broker, asked),
        durability=asked.durability,
        retention=retention,
        min_in_sync_replicas=asked.min_in_sync_replicas,
        learners=asked.learners,
        unclean=asked.unclean,
        preferred=asked.preferred,
        priorities=asked.priorities,
        in_sync_replicas=asked.in_sync_replicas,
    )


def _replicas(broker: Broker, asked: LogIn) -> tuple[str, ...]:
    """The nodes that were named, all, or so many of those that keep the fewest logs.

    A number, also that of all nodes, means the nodes that an existing log of the name has, if it is their
    number: so the same request again is the same log. Raises InvalidRequest.
    """
    brokers = brokers_now(broker)
    wanted = len(brokers) if asked.replicas is None else asked.replicas
    if not isinstance(wanted, int):
        return tuple(wanted)
    if wanted > len(brokers):
        raise InvalidRequest(
            ("/replicas", f"must be at most {len(brokers)}, the number of nodes that keep logs, got {wanted}")
        )
    known = broker.logs.get(asked.name)
    if known is not None and len(known.settings.replicas) == wanted:
        return known.settings.replicas
    if asked.replicas is None:
        return brokers
    ranks = fewest_logs(broker)
    return tuple(sorted(ranks, key=lambda node: ranks[node])[:wanted])


def _version(call: Call, hosted: HostedLog) -> int | None:
    """The version that `If-Match` names, None for any."""
    if_match = call.request.headers.get("if-match")
    return None if if_match is None else wanted_version(if_match, _version_of(call.broker, hosted))


def _log_answer(broker: Broker, hosted: HostedLog, *, status: int = 200) -> Response:
    headers = [*log_headers(broker, hosted), (b"etag", b'"%d"' % _version_of(broker, hosted))]
    if status == 201:
        headers.append((b"location", f"/v1/logs/{hosted.name}".encode()))
    return json_answer(_log_object(broker, hosted), status=status, headers=headers)


def _version_of(broker: Broker, hosted: HostedLog) -> int:
    log = _metadata_of(broker, hosted)
    return _NO_VERSION if log is None else log.version


def _metadata_of(broker: Broker, hosted: HostedLog) -> Log | None:
    log = broker.metadata.log(hosted.name)
    return log if log is not None and log.generation == hosted.generation else None


def _ends(hosted: HostedLog) -> dict[str, int] | None:
    """Return the ends of the log and of its journal at this node; None without a replica that is served.
    A reader confirms them."""
    driver, journal = hosted.serving, hosted.journal
    if driver is None or journal is None or hosted.deleting:
        return None
    return {
        "begin_index": driver.log.begin_index,
        "committed_index": driver.committed_index,
        "term": driver.term,
        "events": journal.next_seq,
    }


def _unsupported_object(log: Log) -> dict[str, Any]:
    """A log that this node's version leaves alone, as the metadata have it."""
    return _object_of(log.name, log.log_id, log.spec, UNSUPPORTED)


def _object_of(name: str, log_id: int, spec: LogSpec, state: str) -> dict[str, Any]:
    """Return a log with its settings and without a role of its replicas."""
    return {
        "name": name,
        "id": f"{log_id:016x}",
        "replication": spec.replication,
        "replicas": list(spec.replicas),
        "durability": spec.durability,
        "retention": spec.retention,
        "learners": list(spec.learners),
        "min_in_sync_replicas": spec.min_in_sync_replicas,
        "unclean": spec.unclean,
        "preferred": spec.preferred,
        "priorities": dict(spec.priorities),
        "in_sync_replicas": spec.in_sync_replicas,
        "state": state,
        "master": None,
        "epoch": None,
        "sync_state_set": None,
        "set_epoch": None,
        "leaving": [],
    }


def _log_object(broker: Broker, hosted: HostedLog) -> dict[str, Any]:
    """Return the log as this node knows it.

    master to set_epoch: in controller mode as the controllers have it; in classic mode the master of the
    configuration, its epoch at a node that serves the log, and the replicas in sync at the master alone.
    schema_version: of the committed records at a node that serves the log, if it has a schema.
    """
    settings, log = hosted.settings, _metadata_of(broker, hosted)
    state = LOG_DELETING if hosted.deleting else LOG_CREATED
    found = _object_of(settings.name, hosted.log_id, settings.spec, state)
    if hosted.driver is not None and (
        version := hosted.driver.state.schema_version(hosted.driver.committed_index)
    ):
        found["schema_version"] = version
    if settings.replication == "raft" and hosted.driver is not None:
        found["replicas"] = list(hosted.members)
        found["learners"] = list(hosted.group.learners)
    if log is not None and settings.replication == "controller":
        found["master"] = log.master_node
        found["epoch"] = log.master_epoch
        found["sync_state_set"] = [node for node in log.nodes if node in log.set_nodes]
        found["leaving"] = list(log.leaving)
        found["in_sync_replicas"] = log.spec.in_sync_replicas
        found["set_epoch"] = log.set_epoch
    elif settings.replication == "classic":
        found["master"] = settings.replicas[0]
        if hosted.driver is not None:
            seen = hosted.driver.status().core
            found["epoch"] = seen.epoch
            found["sync_state_set"] = list(seen.sync_state_set) if seen.sync_state_set else None
    return found
