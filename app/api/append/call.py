"""One append request, free of any framework."""

from dataclasses import dataclass

from app.api.append.parameters import AppendParameters
from app.api.http.messages import RawHeaders
from app.log.contract import AppendStream


@dataclass(slots=True)
class AppendCall:
    """An append as it arrived, from the lane, the plain route or a stream of appends.

    headers: lower-case names, as ASGI gives them. body: as sent, not yet unpacked. reserved_bytes:
    reserved in
    the in-flight limit for it. parameters: instead of those in the query. stream: the stream it belongs to.
    """

    log: str
    path: str
    query: bytes
    headers: RawHeaders
    body: bytes
    request_id: bytes
    reserved_bytes: int = 0
    parameters: AppendParameters | None = None
    stream: AppendStream | None = None
