"""Lines of a tokens file: one token a line, `#` begins a comment.

    sha256:HEX SCOPE… [logs=PATTERN,…] [name=NAME] [rate=N] [in_flight=N]
    TOKEN [SCOPE…] [logs=…] …

A SCOPE is `read`, `append`, `cursors`, `admin`, or `write` for all of them. The second form holds the token
in plain text; without a scope it permits everything, as in earlier versions.
"""

import hashlib
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from app.api.access.caller import ALL_LOGS, ALL_SCOPES, Grant, Scope
from app.errors import ConfigError

PREFIX: Final = "sha256:"
TOKEN_PREFIX: Final = "cl_"  # lets secret scanners find tokens of this product
_RANDOM_BYTES: Final = 32
_NAME_DIGITS: Final = 8  # of the digest, for a token without a name
_HASH = re.compile(PREFIX + r"([0-9a-f]{64})")
_LINE_END = re.compile(r"\r\n?|\n")  # not those of str.splitlines: a comment may contain them
_BYTE_ORDER_MARK: Final = "\ufeff"  # of editors; before a hash it would make the hash a token
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_PATTERN = re.compile(r"[a-z0-9._-]{1,129}\*?|\*")


@dataclass(frozen=True, slots=True)
class TokenLine:
    """digest: SHA-256 of the token. plain: the file holds the token itself."""

    digest: bytes
    grant: Grant
    plain: bool


def new_token() -> str:
    """Return a random token of 256 bits. Its digest therefore needs no salt and no slow hash."""
    return TOKEN_PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def digest_of(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def hash_line(token: str, words: Iterable[str]) -> str:
    """Return the line of a tokens file that permits `token`. Raises ConfigError as `parse_line`."""
    line = " ".join((PREFIX + digest_of(token.encode()).hex(), *words))
    parse_line(line)
    return line


def parse_lines(text: str) -> dict[bytes, TokenLine]:
    """Return the tokens of a file by digest; of two lines for one token, the last. Raises ConfigError, with
    the number of the line and without the token."""
    tokens: dict[bytes, TokenLine] = {}
    for number, line in enumerate(_LINE_END.split(text.removeprefix(_BYTE_ORDER_MARK)), 1):
        try:
            token = parse_line(line)
        except ConfigError as error:
            raise ConfigError(f"line {number}: {error}") from None
        if token is not None:
            tokens[token.digest] = token
    return tokens


def parse_line(line: str) -> TokenLine | None:
    """Return None for a line without a token. Raises ConfigError."""
    words = line.partition("#")[0].split()
    if not words:
        return None
    first, *rest = words
    plain = PREFIX not in first.lower()  # also after a quotation mark, or the mark of a joined file
    if plain:
        digest = digest_of(first.encode())
    elif found := _HASH.fullmatch(first):
        digest = bytes.fromhex(found[1])
    else:
        raise ConfigError(
            f"`{PREFIX}` must begin its line and be followed by 64 hexadecimal digits, all in lower case"
        )
    return TokenLine(digest, _grant(digest, rest, plain), plain)


def _grant(digest: bytes, words: list[str], plain: bool) -> Grant:
    scopes: set[Scope] = set()
    options: dict[str, str] = {}
    for place, word in enumerate(words, 2):  # a wrong word is not shown: it may be a token
        name, separator, value = word.partition("=")
        if separator:
            if name not in ("logs", "name", "rate", "in_flight") or name in options:
                raise ConfigError(
                    f"word {place} is an unknown or repeated option; each of `logs=`, `name=`, `rate=` and "
                    "`in_flight=` is allowed once"
                )
            options[name] = value
        elif word == "write":
            scopes |= ALL_SCOPES
        elif word in ALL_SCOPES:
            scopes.add(Scope(word))
        else:
            known = ", ".join((*Scope, "write"))
            raise ConfigError(f"word {place} must be a scope ({known}) or an option such as `logs=`")
    if not scopes and not (plain and not options):
        raise ConfigError(f"the token needs at least one scope of {', '.join((*Scope, 'write'))}")
    return Grant(
        name=_name(options.get("name"), digest),
        scopes=frozenset(scopes) or ALL_SCOPES,
        logs=_logs(options.get("logs")),
        requests_per_s=_limit("rate", options.get("rate")),
        in_flight=_limit("in_flight", options.get("in_flight")),
    )


def _name(given: str | None, digest: bytes) -> str:
    if given is None:
        return f"token-{digest.hex()[:_NAME_DIGITS]}"
    if not _NAME.fullmatch(given):
        raise ConfigError("`name=` must have 1 to 64 letters, digits or . _ @ -")
    return given


def _logs(given: str | None) -> tuple[str, ...]:
    if given is None:
        return ALL_LOGS
    patterns = tuple(given.split(","))
    if not all(_PATTERN.fullmatch(pattern) for pattern in patterns):
        raise ConfigError("`logs=` must be names of logs, separated by commas; a trailing * makes a prefix")
    return patterns


def _limit(name: str, given: str | None) -> int | None:
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and 1 <= int(given[:10]) <= 1_000_000_000):
        raise ConfigError(f"`{name}=` must be a whole number from 1 to 1000000000")
    return int(given)
