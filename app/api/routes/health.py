"""Routes for operators, probes and people: health, metrics, the API page, the page of each problem."""

import asyncio
import html
import re
from functools import lru_cache
from importlib.resources import files
from typing import Annotated, Final

from fastapi import APIRouter, Request
from fastapi import Path as PathParameter
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.responses import RedirectResponse, Response

from app.api.access.caller import ALL_SCOPES
from app.api.access.html_headers import html_headers
from app.api.access.tokens import Tokens
from app.api.http.dependencies import NodeBroker, Nothing, body_answer, json_answer
from app.api.http.openapi import answers
from app.api.metrics.node import Collected, NodeCollector
from app.api.routes import documentation
from app.api.tables.known_jobs import known_jobs
from app.errors import PROBLEMS, CommitlogError, NotFound

router = APIRouter(tags=["operations"])

_READY: Final = {
    "ready": True,
    "logs": {"default": True},
    "failing": {},
    "log_count": 1,
    "ready_log_count": 1,
    "failing_count": 0,
}
_HTML: Final = "text/html; charset=utf-8"
_ASSETS: Final = {
    "swagger-ui.css": "text/css; charset=utf-8",
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "favicon.png": "image/png",
}
_CACHED: Final = ((b"cache-control", b"max-age=86400"),)
_CODE: Final = re.compile("`([^`]*)`")
_PROBLEM_STYLE: Final = (
    ":root { color-scheme: light dark } body { font: 16px/1.5 system-ui, sans-serif; max-width: 42rem; "
    "margin: 2rem auto; padding: 0 1rem } th { text-align: left; font-weight: 600 } "
    "td, th { padding-right: 1rem; vertical-align: top; overflow-wrap: anywhere }"
)
_DOCS: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>commitlog API</title>
<link rel="stylesheet" href="/docs/swagger-ui.css">
<link rel="icon" type="image/png" href="/docs/favicon.png">
</head>
<body>
<div id="swagger-ui"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script>
SwaggerUIBundle({url: "/v1/openapi.json", dom_id: "#swagger-ui", deepLinking: true,
  presets: [SwaggerUIBundle.presets.apis], validatorUrl: null});
</script>
</body>
</html>
"""


@router.get(
    "/healthz",
    summary="Liveness of the process",
    responses=answers(example={"status": "ok"}, of_a_log=False),
    response_class=Response,
)
async def healthz(query: Nothing) -> Response:
    return json_answer({"status": "ok"})


@router.get(
    "/readyz",
    summary="Readiness of this node",
    description="503 while a log has no leader (a master without a lease is none; in classic mode a "
    "slave has one as long as the configuration names it, also while it is down) or is under repair, "
    "while this node has not caught up with a log, has not loaded the list of logs or could not open one, "
    "and while a background task fails (`failing`: its name and error). A replica that was removed from "
    "its log's group is ready: the node forwards the calls. With tokens configured, `logs` and `failing` "
    "have the names that the token may see, none without a token; the counts are of all.",
    responses=answers(example=_READY, of_a_log=False)
    | answers(example={**_READY, "ready": False}, description="Not ready", of_a_log=False, status=503),
    response_class=Response,
)
async def readyz(request: Request, broker: NodeBroker, query: Nothing) -> Response:
    logs = {
        hosted.name: hosted.removed or (hosted.caught_up and hosted.has_leader and not hosted.repairing)
        for hosted in broker.logs.values()
        if hosted.journal is not None
    }
    metadata = broker.metadata
    knows_logs = metadata.hosted.removed or (metadata.is_current and not broker.metadata_logs.unopened)
    failing = broker.tasks.failing
    ready = all(logs.values()) and knows_logs and not (broker.waits.stopping or failing)
    headers = () if ready else ((b"retry-after", b"1"),)
    tokens: Tokens = request.app.state.tokens
    viewer = tokens.viewer(request.headers.get("authorization", "").encode("latin-1"))
    answer = {
        "ready": ready,
        "logs": {name: is_ready for name, is_ready in logs.items() if viewer.sees(name)},
        "failing": failing if viewer.may(ALL_SCOPES, None) else {},  # names of tasks contain names of logs
        "log_count": len(logs),
        "ready_log_count": sum(logs.values()),
        "failing_count": len(failing),
    }
    return json_answer(answer, status=200 if ready else 503, headers=headers)


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    responses=answers(content={"text/plain": {"schema": {"type": "string"}}}, of_a_log=False),
    response_class=Response,
)
async def metrics(request: Request, broker: NodeBroker, query: Nothing) -> Response:
    jobs = await known_jobs(request).last()
    collected = Collected(NodeCollector(broker, jobs).collect())
    text = await asyncio.to_thread(generate_latest, collected)  # 0.1 s for a thousand logs
    return body_answer(text, CONTENT_TYPE_PLAIN_0_0_4)


# --- pages ----------------------------------------------------------------------------------------------


@router.get("/", include_in_schema=False)
async def root() -> Response:
    return RedirectResponse("/ui")


@router.get("/docs", include_in_schema=False)
async def docs() -> Response:
    return body_answer(_DOCS.encode(), _HTML, headers=html_headers())


@router.get("/docs/{path:path}", include_in_schema=False)
async def docs_file(path: str) -> Response:
    """A file of Swagger UI, which works without network, or of the documentation."""
    if path not in _ASSETS:
        return documentation.page(path)
    return body_answer(_asset(path), _ASSETS[path], headers=_CACHED)


@lru_cache(maxsize=len(_ASSETS))
def _asset(name: str) -> bytes:
    return files("fastapi_offline").joinpath("static", name).read_bytes()


@router.get("/problems", include_in_schema=False)
@router.get("/problems/", include_in_schema=False)
async def problem_list(query: Nothing) -> Response:
    return body_answer(_list_of_problems().encode(), _HTML, headers=html_headers())


@router.get(
    "/problems/{code}",
    summary="Description of a problem",
    responses=answers(
        content={"text/html": {"schema": {"type": "string"}}},
        of_a_log=False,
        headers=("Content-Security-Policy", "X-Content-Type-Options", "X-Frame-Options"),
    ),
    response_class=Response,
)
async def problem_page(
    request: Request, code: Annotated[str, PathParameter(examples=["index-mismatch"])], query: Nothing
) -> Response:
    problem = PROBLEMS.get(code)
    if problem is None:
        raise NotFound(f"{code!r} is not a problem code of this API")
    return body_answer(_page_of(problem).encode(), _HTML, headers=html_headers())


def _page_of(problem: type[CommitlogError]) -> str:
    text = _CODE.sub(r"<code>\1</code>", html.escape(" ".join((problem.__doc__ or "").split())))
    facts = (
        ("status", str(problem.http_status)),
        ("outcome of the append", problem.outcome.value),
        ("retryable", "yes" if problem.retryable else "no"),
    )
    rows = "".join(f'<tr><th scope="row">{name}</th><td>{value}</td></tr>' for name, value in facts)
    return _problem_html(
        problem.code,
        f"<h1>{html.escape(problem.title)}</h1><p><code>{problem.code}</code></p>"
        f"<p>{text}</p><table>{rows}</table>"
        '<p><a href="/problems">All problems</a>, <a href="/docs">the API</a></p>',
    )


@lru_cache(maxsize=1)
def _list_of_problems() -> str:
    rows = "".join(
        f'<tr><td>{each.http_status}</td><td><a href="/problems/{each.code}">{each.code}</a></td>'
        f"<td>{html.escape(each.title)}</td></tr>"
        for each in sorted(PROBLEMS.values(), key=lambda each: (each.http_status, each.code))
    )
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("status", "code", "title"))
    return _problem_html(
        "Problems",
        f"<h1>Problems</h1><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        '<p><a href="/docs">The API</a></p>',
    )


def _problem_html(title: str, body: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title} - commitlog</title><style>{_PROBLEM_STYLE}</style></head>"
        f"<body>{body}</body></html>\n"
    )
