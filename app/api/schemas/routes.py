"""Schema of a log: the newest version is set here, and all versions are read (docs/api.md §5)."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Path, Query, Request
from pydantic import Field
from starlette.responses import Response

from app.api.http.dependencies import LogName, Nothing, reserve
from app.api.http.log_call import Call, LogCall, Served
from app.api.http.openapi import ETAG, OF_A_BODY, OF_A_COMMIT, answers, json_request, unchanged
from app.api.http.preconditions import is_held, wanted_version
from app.api.http.query import WHOLE
from app.api.read.query import ConsistencyQuery
from app.api.read.reader import confirmed_reader
from app.api.routes.reads import MinIndex, header_index
from app.api.schemas.documents import SCHEMA_EXAMPLE, SchemaIn, check_valid, document_of, documents_of
from app.errors import Forbidden, SchemaNotFound
from app.log.commands import ABSENT
from app.log.control_records import SchemaRecord
from app.log.schema_gate import record_decoder
from app.log.schemas import SchemaVersion
from app.log.set_schema import REJECT, SetSchema, incompatibilities
from app.names import SYSTEM
from app.schemas.schema import SCHEMA_VERSIONS_MAX
from storage.units import MIB

router = APIRouter(tags=["schemas"])

BODY_MAX_BYTES: Final = MIB  # a definition as a JSON string may double its size
_NO_VERSION: Final = 0  # in the ETag of the versions of a log without a schema
_CONFIRMED: Final = ("read-index-unavailable", "not-yet-replicated")
_READS: Final = ("schema-not-found", *_CONFIRMED)
Version = Annotated[
    int,
    Field(ge=1, le=SCHEMA_VERSIONS_MAX),
    WHOLE,
    Path(description="Version of the schema", examples=[1]),
]
Consistent = Annotated[ConsistencyQuery, Query()]
_UNCHANGED: Final[dict[int | str, dict[str, Any]]] = {
    304: unchanged("The client holds the newest version: `If-None-Match` names its ETag")
}


@router.put(
    "/v1/logs/{log}/schema",
    summary="Set the schema of a log",
    description="The new version applies to all records after `index`. With `If-Match` it is set only if the "
    "newest version is equal; with `If-None-Match: *` only if the log has no schema. The same content again "
    "changes nothing and returns the newest version. With `compatibility: backward` the version must accept "
    "all records that the newest version accepts. With `on_invalid: reject`, appends of other records are "
    "refused.",
    responses=answers(
        "schema-incompatible",
        "schema-changed",
        *OF_A_COMMIT,
        *OF_A_BODY,
        example=SCHEMA_EXAMPLE,
        headers=(ETAG,),
    ),
    openapi_extra=json_request(
        SchemaIn,
        {
            "format": "json",
            "definition": {
                "type": "object",
                "properties": {"id": {"type": "integer"}},
                "required": ["id"],
            },
            "key_columns": ["id"],
        },
    ),
    response_class=Response,
)
async def set_schema(call: Call, log: LogName, query: Nothing) -> Response:
    hosted = call.find(log)
    if log.startswith(SYSTEM):
        raise Forbidden("a system log has no schema")
    asked = (await call.asked(SchemaIn, BODY_MAX_BYTES)).record()

    async def act(here: Served) -> Response:
        newest = here.driver.state.schemas.newest
        await asyncio.to_thread(_prepare, asked, newest)
        result = await here.commit(SetSchema(asked, _expected(call.request, newest)))
        return await _answer(here, here.driver.state.schemas.until(result.index)[-1])

    return await call.at_leader(hosted, act)


def _prepare(asked: SchemaRecord, newest: SchemaVersion | None) -> None:
    """Check the definition, and compute in advance what the decision at the leader needs.

    Even a small definition may take 0.5 s: it may have large patterns, or definitions that refer to each
    other.
    """
    check_valid(asked)
    if newest is not None:
        incompatibilities(newest.record, asked)
    if asked.on_invalid == REJECT:
        next_version = 1 if newest is None else newest.version + 1
        record_decoder(msgspec.structs.replace(asked, version=next_version))


def _expected(request: Request, newest: SchemaVersion | None) -> int | None:
    """Return the required newest version; ABSENT for `If-None-Match: *`, None for any."""
    if request.headers.get("if-none-match") == "*":
        return ABSENT
    if_match = request.headers.get("if-match")
    return None if if_match is None else wanted_version(if_match, None if newest is None else newest.version)


@router.get(
    "/v1/logs/{log}/schema",
    summary="Get the newest schema of a log",
    responses=answers(*_READS, example=SCHEMA_EXAMPLE, headers=(ETAG,)) | _UNCHANGED,
    response_class=Response,
)
async def newest_schema(call: Call, log: LogName, query: Consistent, min_index: MinIndex = None) -> Response:
    here, versions = await _visible(call, log, query, min_index)
    if not versions:
        raise SchemaNotFound(log)
    return await _answer_read(call.request, here, versions[-1])


@router.get(
    "/v1/logs/{log}/schemas/{version}",
    summary="Get a version of the schema of a log",
    responses=answers(*_READS, example=SCHEMA_EXAMPLE, headers=(ETAG,)) | _UNCHANGED,
    response_class=Response,
)
async def one_schema(
    call: Call, log: LogName, version: Version, query: Consistent, min_index: MinIndex = None
) -> Response:
    here, versions = await _visible(call, log, query, min_index)
    found = next((each for each in reversed(versions) if each.version == version), None)
    if found is None:
        raise SchemaNotFound(log, version)
    return await _answer_read(call.request, here, found)


@router.get(
    "/v1/logs/{log}/schemas",
    summary="List the versions of the schema of a log",
    description="Oldest first; empty for a log without a schema. With `Commitlog-Min-Index` the list is "
    "complete for all records up to that index. The ETag is the newest version, 0 without a schema.",
    responses=answers(*_CONFIRMED, example={"schemas": [SCHEMA_EXAMPLE]}, headers=(ETAG,)) | _UNCHANGED,
    response_class=Response,
)
async def all_schemas(call: Call, log: LogName, query: Consistent, min_index: MinIndex = None) -> Response:
    here, versions = await _visible(call, log, query, min_index)
    etag = _etag(versions[-1].version if versions else _NO_VERSION)
    if _is_known(call.request, etag):
        return here.unchanged(etag)
    size = sum(len(each.record.definition) for each in versions)
    reserve(call.request, size)
    documents = await asyncio.to_thread(documents_of, versions)
    return here.answer({"schemas": documents}, headers=[(b"etag", etag)])


async def _visible(
    call: LogCall, log: str, query: ConsistencyQuery, min_index: str | None
) -> tuple[Served, Sequence[SchemaVersion]]:
    """Return the versions that the request may see, oldest first.

    A replica that has not yet received the state of its log lets another one answer.
    """
    hosted = call.find(log)
    wanted_min = header_index("Commitlog-Min-Index", min_index)
    reader = await confirmed_reader(call, hosted, query.consistency, wanted_min)
    if reader.lacks_state:
        await call.elsewhere(hosted)
    return reader.here, reader.driver.state.schemas.until(reader.visible_end)


async def _answer_read(request: Request, here: Served, version: SchemaVersion) -> Response:
    etag = _etag(version.version)
    return here.unchanged(etag) if _is_known(request, etag) else await _answer(here, version)


async def _answer(here: Served, version: SchemaVersion) -> Response:
    document = await asyncio.to_thread(document_of, version)
    return here.answer(document, headers=[(b"etag", _etag(version.version))])


def _etag(version: int) -> bytes:
    return b'"%d"' % version


def _is_known(request: Request, etag: bytes) -> bool:
    return is_held(request.headers.get("if-none-match"), etag.decode())
