"""Loss receipts over HTTP: the records that an unclean election removed from this node's copy (A-04)."""

import asyncio
import re
from typing import Annotated, Final

from fastapi import APIRouter, Path
from starlette.responses import FileResponse, Response

from app.api.http.dependencies import LogName, Nothing
from app.api.http.leader_headers import log_headers
from app.api.http.log_call import Call
from app.api.http.negotiation import accepted_type
from app.api.http.openapi import answers
from app.errors import NotFound
from app.media_types import ARROW_FILE
from app.node.repair.receipts import FOLDER
from storage.files import OsFileSystem

router = APIRouter(tags=["logs"])

_NAME: Final = re.compile(r"\d{20}-\d{20}-\d{20}\.arrow")


@router.get(
    "/v1/logs/{log}/receipts/{name}",
    summary="Download the records that an unclean election removed from this node",
    description="An Arrow file with the columns of a read. The event `truncate` in this node's journal has "
    "its name. Other nodes do not have the file.",
    responses=answers(content={ARROW_FILE: {"schema": {"type": "string", "format": "binary"}}}),
    response_class=Response,
)
async def receipt(
    call: Call,
    log: LogName,
    name: Annotated[str, Path(description="File name of the receipt")],
    query: Nothing,
) -> Response:
    broker, hosted = call.broker, call.broker.lookup.find(log)
    accepted_type(call.request.scope["headers"], (ARROW_FILE,))
    path = f"{broker.node.data.absolute()}/{FOLDER}/{hosted.name}/{name}"
    if _NAME.fullmatch(name) is None or not await asyncio.to_thread(OsFileSystem().exists, path):
        raise NotFound(f"{broker.node.id} has no receipt {name!r}")
    answer = FileResponse(path, media_type=ARROW_FILE)  # sent in pieces: a receipt has no size limit
    answer.raw_headers.extend(log_headers(broker, hosted))
    return answer
