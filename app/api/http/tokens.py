"""Bearer tokens, read once at the start: lines of `TOKEN [read|write]`, `#` begins a comment.

A token without a word, or with `write`, may do everything; `read` may not append.
"""

import hmac
from pathlib import Path
from typing import Final

from app.errors import ConfigError, Forbidden, Unauthenticated

_READ: Final = "read"
_WRITE: Final = "write"
_SAFE_METHODS: Final = ("GET", "HEAD")
_OPEN: Final = ("/healthz", "/readyz", "/docs", "/v1/openapi.json", "/problems", "/ui")
_OPEN_BELOW: Final = ("/problems/", "/docs/")


class Tokens:
    """Permission check. Without tokens every caller may do everything."""

    def __init__(self, tokens: dict[bytes, str]) -> None:
        self._tokens = tokens

    @classmethod
    def load(cls, path: Path | None) -> "Tokens":
        """Raises ConfigError, also for a file without tokens, which would refuse every caller."""
        if path is None:
            return cls({})
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"tokens_file {path}: {error}") from error
        tokens: dict[bytes, str] = {}
        for number, line in enumerate(lines, 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            if len(words) > 2 or (len(words) == 2 and words[1] not in (_READ, _WRITE)):
                raise ConfigError(f"tokens_file {path}, line {number} must be `TOKEN [read|write]`")
            tokens[words[0].encode()] = words[1] if len(words) == 2 else _WRITE
        if not tokens:
            raise ConfigError(f"tokens_file {path} must contain at least one token")
        return cls(tokens)

    @property
    def needed(self) -> bool:
        return bool(self._tokens)

    def check(self, method: str, path: str, authorization: bytes | None) -> None:
        """Raises Unauthenticated or Forbidden. Some paths stay open (docs/api.md §5)."""
        if not self._tokens or is_open(path):
            return
        scheme, _, given = (authorization or b"").partition(b" ")
        if scheme.lower() != b"bearer":
            raise Unauthenticated()
        allowed: str | None = None
        for token, right in self._tokens.items():
            if hmac.compare_digest(token, given.strip()):  # constant time for every token
                allowed = right
        if allowed is None:
            raise Unauthenticated("the token is not in the service's tokens file")
        if allowed == _READ and method not in _SAFE_METHODS:
            raise Forbidden("the token has the scope `read`; this call requires `write`")


def is_open(path: str) -> bool:
    """Return whether a path needs no token."""
    return path in _OPEN or path.startswith(_OPEN_BELOW) or _is_page_file(path)


def _is_page_file(path: str) -> bool:
    """Whether the path is a file of the live page; its data ends in .json."""
    return path.startswith("/ui/") and not path.endswith(".json")
