"""Authentication by bearer token. The tokens file is read again when it changes.

A file that has become unreadable or invalid changes nothing: the tokens that were read before stay valid. Nor
does one that is still being written: without its end a line may permit more, and later lines are missing.
"""

import asyncio
import logging
import os
import stat
from pathlib import Path
from typing import Final

from app.api.access.caller import ANONYMOUS, UNRESTRICTED, Caller
from app.api.access.token_lines import TokenLine, digest_of, parse_lines
from app.errors import ConfigError, Unauthenticated
from app.pauses import rest
from app.telemetry import Meter
from storage.units import MIB

logger = logging.getLogger(__name__)

RELOAD_S: Final = 1.0
FILE_MAX_BYTES: Final = 4 * MIB
_OPEN_PATHS: Final = ("/", "/healthz", "/readyz", "/docs", "/v1/openapi.json", "/problems", "/ui")
_OPEN_BELOW: Final = ("/problems/", "/docs/")


class Tokens:
    """The callers of this node, by token. Without a file every caller may do everything."""

    def __init__(self, path: Path | None, text: str = "") -> None:
        """text: content of the file. Raises ConfigError."""
        self._path = path
        self._unrestricted = Caller(UNRESTRICTED)
        self._anonymous = Caller(ANONYMOUS)
        self._callers: dict[bytes, Caller] = {}
        self._text = text
        self._seen = text  # by the newest read
        self._failure: str | None = None
        if path is not None:
            self._replace(_parsed(path, text))

    @staticmethod
    def check(path: Path | None) -> None:
        """Raise ConfigError for a file that `load` refuses. Logs nothing."""
        if path is not None:
            _lines(path, _read(path))

    @classmethod
    def load(cls, path: Path | None) -> "Tokens":
        """Read the file. Raises ConfigError, also if it has no tokens: every caller would be refused."""
        if path is None:
            return cls(path)
        tokens = cls(path, _read(path))
        if path.stat().st_mode & stat.S_IROTH:
            logger.warning(
                "tokens_file %s can be read by all users of this machine; use `chmod 600 %s`", path, path
            )
        return tokens

    @property
    def needed(self) -> bool:
        return self._path is not None

    @property
    def failing(self) -> bool:
        """Return whether the file could not be used when it was last read."""
        return self._failure is not None

    def caller(self, path: str, authorization: bytes | None) -> Caller:
        """Return the caller of a path. Some paths are open (docs/api.md §5): their caller has no scope,
        with a token too. Raises Unauthenticated."""
        if self._path is None:
            return self._unrestricted
        return self._anonymous if is_open(path) else self._identified(authorization)

    def viewer(self, authorization: bytes | None) -> Caller:
        """Return whose names an open path may show: those of the token, of no log without a valid one."""
        if self._path is None:
            return self._unrestricted
        try:
            return self._identified(authorization)
        except Unauthenticated:
            return self._anonymous

    def _identified(self, authorization: bytes | None) -> Caller:
        scheme, _, token = (authorization or b"").partition(b" ")
        if scheme.lower() != b"bearer":
            raise Unauthenticated(
                "the request has no header `Authorization: Bearer TOKEN`; "
                "the command line takes the token from --token, COMMITLOG_TOKEN or its context's token file"
            )
        # The digest is compared, not the token: the time it takes reveals nothing that helps to find a token.
        caller = self._callers.get(digest_of(token.strip()))
        if caller is None:
            raise Unauthenticated(
                "the token is not in the service's tokens file; `commitlog token new` makes one, "
                "and prints the line for that file"
            )
        return caller

    # --- changes of the file ------------------------------------------------------------------------------

    async def watch(self, meter: Meter) -> None:
        """Read the file again, until cancelled, whenever it has changed."""
        while self._path is not None:
            await rest(RELOAD_S)
            await self.refresh()
            meter.tokens_failing = self.failing

    async def refresh(self) -> None:
        """Read the file again; use it if it has changed, is valid, and two reads in a row have found the
        same."""
        if self._path is None:
            return
        try:
            text = await asyncio.to_thread(_read, self._path)
            is_settled, self._seen = text == self._seen, text
            if not is_settled:
                return
            if text != self._text:
                self._replace(await asyncio.to_thread(_parsed, self._path, text))
                self._text = text
            elif self._failure is None:
                return
            logger.info("tokens file read again", extra={"tokens": len(self._callers)})
        except ConfigError as error:
            if str(error) != self._failure:
                logger.error("the tokens file is not used, the tokens read before it stay valid: %s", error)
            self._failure = str(error)
        else:
            self._failure = None

    def _replace(self, lines: dict[bytes, TokenLine]) -> None:
        """Change the callers; a token that stays keeps what its limits have counted."""
        for digest in self._callers.keys() - lines.keys():
            self._callers.pop(digest).revoked = True
        for digest, line in lines.items():
            if digest in self._callers:
                self._callers[digest].grant = line.grant
            else:
                self._callers[digest] = Caller(line.grant)


def _read(path: Path) -> str:
    """Return the content of the file. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read(FILE_MAX_BYTES + 1)
        if mode & stat.S_IWOTH:
            raise ConfigError(
                f"tokens_file {path} has the permissions {mode:04o}: other users must not write it; "
                "use `chmod o-w`"
            )
        if len(data) > FILE_MAX_BYTES:
            raise ConfigError(f"tokens_file {path} may have at most {FILE_MAX_BYTES} bytes")
        return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"tokens_file {path}: {error}") from error


def _lines(path: Path, text: str) -> dict[bytes, TokenLine]:
    """Return the lines by digest. Raises ConfigError."""
    try:
        lines = parse_lines(text)
    except ConfigError as error:
        raise ConfigError(f"tokens_file {path}, {error}") from error
    if not lines:
        raise ConfigError(f"tokens_file {path} must contain at least one token")
    return lines


def _parsed(path: Path, text: str) -> dict[bytes, TokenLine]:
    """As _lines, with a warning about tokens in plain text."""
    lines = _lines(path, text)
    plain = sum(line.plain for line in lines.values())
    if plain:
        logger.warning(
            "tokens_file %s holds %d tokens in plain text; replace them by lines of `commitlog token hash`",
            path,
            plain,
        )
    return lines


def is_open(path: str) -> bool:
    """Return whether a path needs no token: it holds no data. The files of the live page are open, its data
    ends in .json."""
    return (
        path in _OPEN_PATHS
        or path.startswith(_OPEN_BELOW)
        or (path.startswith("/ui/") and not path.endswith(".json"))
    )
