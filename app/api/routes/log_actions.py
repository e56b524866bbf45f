"""Actions on a log: `:fence`, `:trim` and `:verify` (docs/api.md §3, §5)."""

import contextlib
from typing import Any, Final

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from app.api.http.dependencies import LogName, Nothing
from app.api.http.json_decoding import Name, Ordinal
from app.api.http.leader_headers import COMMITTED_INDEX
from app.api.http.log_call import Call, Served
from app.api.http.openapi import OF_A_BODY, OF_A_COMMIT, answers, json_request
from app.errors import IndexTrimmed, InvalidRequest, LogDeleting, ReadIndexUnavailable, Repairing
from app.log.commands import UNSET, SetFence, Trim
from app.node.broker import Broker
from app.node.hosted_log import HostedLog
from app.node.repair.verify import Comparison, Verifier, settled_end
from app.node.replica.driver import LogDriver
from storage.errors import StorageError

router = APIRouter(tags=["logs"])

_TRIM_WAIT_MS: Final = 2_000
_TRIM_POLL_S: Final = 0.01
FENCE_EXAMPLE = {"log": "default", "token": "w-a", "index": 45, "term": 7}
TRIM_EXAMPLE = {"log": "default", "begin_index": 40, "until_index": 42}
VERIFY_EXAMPLE: dict[str, Any] = {
    "log": "default",
    "node": "n1",
    "from_index": 0,
    "until_index": 45,
    "has_more": False,
    "deep": False,
    "equal": False,
    "complete": True,
    "first_difference": 17,
    "groups": [["n1", "n2"], ["n3"]],
    "replicas": [
        {"node": "n1", "state": "same", "from_index": 0, "until_index": 45, "first_difference": None},
        {"node": "n2", "state": "same", "from_index": 0, "until_index": 45, "first_difference": None},
        {"node": "n3", "state": "differs", "from_index": 0, "until_index": 17, "first_difference": 17},
    ],
    "batches": 40,
    "bytes": 65536,
}


class FenceIn(msgspec.Struct, forbid_unknown_fields=True):
    """token: required in every append; null removes the fence. match_token: required current token."""

    token: Name | None
    match_token: Name | msgspec.UnsetType | None = msgspec.UNSET


@router.post(
    "/v1/logs/{log}:fence",
    summary="Set the fencing token of a log",
    description="Only appends with this token are accepted. `token` null removes the fence. With "
    "`match_token` the change applies only if the current token is equal; null: no token is set.",
    responses=answers("fenced", *OF_A_COMMIT, *OF_A_BODY, example=FENCE_EXAMPLE),
    openapi_extra=json_request(FenceIn, {"token": "w-a", "match_token": None}),
    response_class=Response,
)
async def fence(call: Call, log: LogName, query: Nothing) -> Response:
    hosted = call.find(log)
    asked = await call.asked(FenceIn)
    match = UNSET if isinstance(asked.match_token, msgspec.UnsetType) else asked.match_token

    async def act(here: Served) -> Response:
        result = await here.commit(SetFence(asked.token, match))
        return here.answer({"log": log, "token": asked.token, "index": result.index, "term": result.term})

    return await call.at_leader(hosted, act)


class TrimIn(msgspec.Struct, forbid_unknown_fields=True):
    """until_index: first index to keep. force: trim even if a fencing cursor is before it."""

    until_index: Ordinal
    force: bool = False


@router.post(
    "/v1/logs/{log}:trim",
    summary="Remove the oldest records",
    description="Every replica removes the records below `until_index`, except the batch that contains it "
    "and the newest committed batch. `begin_index` is the new beginning of the log. A fencing cursor below "
    "`until_index` prevents the trim unless `force` is set.",
    responses=answers("not-materialized", *OF_A_COMMIT, *OF_A_BODY, example=TRIM_EXAMPLE),
    openapi_extra=json_request(TrimIn, {"until_index": 42}),
    response_class=Response,
)
async def trim(call: Call, log: LogName, query: Nothing) -> Response:
    hosted = call.find(log)
    asked = await call.asked(TrimIn)

    async def act(here: Served) -> Response:
        await here.commit(Trim(asked.until_index, asked.force))
        await _trimmed(here, asked.until_index)
        begin_index = here.driver.log.begin_index
        return here.answer({"log": log, "begin_index": begin_index, "until_index": asked.until_index})

    answer = await call.at_leader(hosted, act)
    if not hosted.leads:
        await _trimmed_here(call.broker, hosted, answer, asked.until_index)
    return answer


async def _trimmed_here(broker: Broker, hosted: HostedLog, answer: Response, until_index: int) -> None:
    """Wait, for a limited time, until this replica has begun to carry out a trim that the leader has
    answered, so that a read at the same node does not return the removed records. Damage that is found here
    begins a repair, and does not change the answer."""
    committed = answer.headers.get(COMMITTED_INDEX.decode())
    if answer.status_code != 200 or committed is None or hosted.serving is None:
        return
    with contextlib.suppress(Repairing, LogDeleting):
        await broker.waits.committed(hosted, int(committed), _TRIM_WAIT_MS / 1000)
        if (driver := hosted.serving) is not None:
            try:
                await _trimmed(Served(broker, hosted, driver), until_index)
            except StorageError as error:
                if not driver.has_ended:
                    broker.repairs.report(error, "read")


async def _trimmed(here: Served, until_index: int) -> None:
    """Wait until this replica has begun to remove what a committed trim allows: it saves its state before."""
    broker, log = here.broker, here.driver.log
    kept = min(until_index, here.driver.committed_index)
    deadline_ms = broker.clock.monotonic_ms() + _TRIM_WAIT_MS
    while log.begin_index < kept and broker.clock.monotonic_ms() < deadline_ms and not broker.waits.stopping:
        if kept > log.end_index or log.batch_at(kept).base_index <= log.begin_index:
            return
        await broker.waits.pause(_TRIM_POLL_S)


class VerifyIn(msgspec.Struct, forbid_unknown_fields=True):
    """from_index: null: beginning of the log. until_index: exclusive; null: end of the committed records.
    deep: reread all data from disk and recompute all hash chains."""

    from_index: Ordinal | None = None
    until_index: Ordinal | None = None
    deep: bool = False


@router.post(
    "/v1/logs/{log}:verify",
    summary="Compare the replicas of a log",
    description="Compares this node's replica with all others, batch by batch, by their hash chains and "
    "checksums. `first_difference` is the first index at which two replicas differ; `groups` lists the "
    "replicas that are equal there. A call takes a few seconds at most: if `has_more` is true, continue at "
    "`until_index`. `from_index` of a replica is the first index compared, later than that of the answer if "
    "the replica begins later. A damaged replica is repaired automatically; a difference is only reported. "
    "`complete` is false if a replica could not be compared.",
    responses=answers("index-trimmed", *OF_A_BODY, example=VERIFY_EXAMPLE),
    openapi_extra=json_request(VerifyIn, {"from_index": 0, "deep": False}),
    response_class=Response,
)
async def verify(call: Call, log: LogName, query: Nothing) -> Response:
    broker, hosted = call.broker, call.find(log)
    asked = await call.asked(VerifyIn)
    if hosted.repair is not None:
        raise Repairing()

    async def act(here: Served) -> Response:
        driver = here.driver
        with contextlib.suppress(ReadIndexUnavailable):  # without a leader what is known here is compared
            await broker.waits.read_index(hosted)
        first, until = _range_of(driver, asked)
        reread = broker.repairs.reread if asked.deep else None
        verifier = Verifier(broker.repairs.calls, driver, _others(here), reread)
        try:
            result = await verifier.compare(first, until)
        except StorageError as error:
            if driver.has_ended:  # its files were cut or moved meanwhile: what was found proves nothing
                raise Repairing() from error
            if not broker.repairs.report(error, "verify"):
                raise
            result = verifier.damaged(first)
        else:
            if driver.has_ended:
                raise Repairing()
            if not result.equal:
                broker.repairs.differs(hosted, result)
        content = {"log": log, "node": broker.node.id, **_report(result, until), "deep": asked.deep}
        return here.answer({name: content[name] for name in VERIFY_EXAMPLE})

    driver = hosted.serving
    if driver is not None:
        return await act(Served(broker, hosted, driver))
    return await call.at_leader(hosted, act)


def _range_of(driver: LogDriver, asked: VerifyIn) -> tuple[int, int]:
    """Return the first index and the exclusive end to verify. Raises IndexTrimmed, InvalidRequest."""
    begin, end = max(driver.log.begin_index, 0), settled_end(driver)
    first = begin if asked.from_index is None else asked.from_index
    until = end if asked.until_index is None else asked.until_index
    if first < begin:
        raise IndexTrimmed(begin)
    if until > end:
        raise InvalidRequest(
            ("/until_index", f"must be at most {end}, the end of the committed records, got {until}")
        )
    if first > until:
        raise InvalidRequest(("/from_index", f"must be at most until_index, {until}, got {first}"))
    return first, until


def _others(here: Served) -> list[str]:
    """Return every other replica, from the log itself or otherwise the configuration."""
    members = here.driver.state.membership
    nodes = here.hosted.settings.replicas if members is None else (*members.voters, *members.learners)
    return [node for node in nodes if node != here.broker.node.id]


def _report(result: Comparison, until: int) -> dict[str, Any]:
    return {
        "from_index": result.from_index,
        "until_index": result.until_index,
        "has_more": result.until_index < until and any(each.compares for each in result.replicas[1:]),
        "equal": result.equal,
        "complete": result.complete,
        "first_difference": result.first_difference,
        "groups": result.groups,
        "replicas": [
            {
                "node": each.node,
                "state": each.state,
                "from_index": each.from_index,
                "until_index": each.until_index,
                "first_difference": each.first_difference,
            }
            for each in result.replicas
        ],
        "batches": result.batches,
        "bytes": result.size_bytes,
    }
