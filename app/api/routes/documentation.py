"""Pages of the documentation below `/docs/`: the files that `make docs-site` builds, and a wheel has.

`/docs` itself is the page of the REST routes. The folder is listed once, so a path can name no other file.
"""

import mimetypes
from functools import cache
from pathlib import Path
from typing import Final

from starlette.responses import Response

from app.api.access.html_headers import html_headers
from app.api.http.dependencies import body_answer
from app.errors import NotFound

FOLDER: Final = Path(__file__).with_name("site")
NOT_BUILT: Final = (
    "this node is installed without the pages of the documentation; in the repository, `make docs-site` "
    "builds them for its own nodes, and `make wheel` a wheel that has them. /docs describes the routes of "
    "REST, and `commitlog --help` the commands"
)
_HEADERS: Final = (
    (b"cache-control", b"no-cache"),
    *html_headers("default-src 'self' 'unsafe-inline' data:; worker-src 'self' blob:"),
)


def page(path: str, folder: Path = FOLDER) -> Response:
    """Return a file of the site. Raises NotFound, with the remedy when the site is not built."""
    files = _files(folder)
    if not files:
        raise NotFound(NOT_BUILT)
    found = files.get(path or "index.html")
    if found is None:
        raise NotFound(f"/docs/{path} does not exist")
    kind = mimetypes.guess_type(found.name)[0] or "application/octet-stream"
    kind = f"{kind}; charset=utf-8" if kind.startswith("text/") else kind
    return body_answer(found.read_bytes(), kind, headers=_HEADERS)


def is_built() -> bool:
    return bool(_files(FOLDER))


@cache
def _files(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
