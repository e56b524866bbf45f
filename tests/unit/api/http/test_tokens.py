"""Who may call what, by the token of the call (docs/api.md §5)."""

import pytest

from app.api.http.tokens import Tokens
from app.errors import Forbidden, Unauthenticated

TOKENS = Tokens({b"all": "write", b"look": "read"})


@pytest.mark.parametrize(
    "path", ["/healthz", "/readyz", "/docs", "/v1/openapi.json", "/problems/fenced", "/ui", "/ui/main.js"]
)
def test_what_holds_no_data_needs_no_token(path: str) -> None:
    TOKENS.check("GET", path, None)


@pytest.mark.parametrize(
    "path", ["/v1/logs", "/metrics", "/ui/overview.json", "/ui/log.json", "/uix", "/docsx"]
)
def test_data_needs_one(path: str) -> None:
    for authorization in (None, b"Bearer none", b"Basic all"):
        with pytest.raises(Unauthenticated):
            TOKENS.check("GET", path, authorization)
    TOKENS.check("GET", path, b"Bearer look")


def test_a_read_token_changes_nothing() -> None:
    with pytest.raises(Forbidden):
        TOKENS.check("POST", "/v1/logs", b"Bearer look")
    TOKENS.check("POST", "/v1/logs", b"bearer all")
