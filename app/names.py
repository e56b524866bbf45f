"""Rules of names (docs/api.md §1, §5): logs, nodes and cursors; of keys and tokens. A rule is a pattern, and
words for people.

Imports nothing of the service: the client and the command line check names too.
"""

import re
from dataclasses import dataclass
from typing import Final

from app.arguments import check_text

SHOWN_CHARACTERS = 80  # of a refused name
SYSTEM = "__"  # beginning of the name of a log of the system


@dataclass(frozen=True)
class NameRule:
    """Rule of a name: a pattern, and `words` that continue a sentence with the name as its subject."""

    pattern: re.Pattern[str]
    words: str

    @property
    def anchored(self) -> str:
        """The pattern as JSON Schema and OpenAPI have it, for the whole name."""
        return f"^{self.pattern.pattern}$"

    def refusal(self, given: object) -> str:
        """Return the words and the refused value."""
        return f"{self.words}, got {str(given)[:SHOWN_CHARACTERS]!r}"


LOG_NAME: Final = NameRule(
    re.compile(r"[a-z0-9][a-z0-9._-]{0,127}"),
    "must have 1 to 128 characters of a-z, 0-9, `.`, `_` and `-`, the first one a letter or a digit",
)
NODE_ID: Final = NameRule(
    re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}"),
    "must have 1 to 32 letters, digits, `.`, `_` or `-`, the first one a letter or a digit",
)
KNOWN_NODE_ID: Final = NameRule(
    re.compile(r"[A-Za-z0-9._-]{1,64}"), "must have 1 to 64 letters, digits, `.`, `_` or `-`"
)
"""Id of a node that calls name: wider than NODE_ID, so that they can name any node of an earlier version."""
CURSOR_NAME: Final = NameRule(
    re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"),
    "must have 1 to 128 letters, digits, `.`, `_` or `-`, the first one a letter, a digit or `_`",
)
IDEMPOTENCY_KEY: Final = NameRule(re.compile(r"[!-~]{1,255}"), "must have 1 to 255 visible ASCII characters")
_RULES: Final = {rule.anchored: rule for rule in (LOG_NAME, NODE_ID, KNOWN_NODE_ID, CURSOR_NAME)}


def rule_of(pattern: object) -> NameRule | None:
    """Return the rule with this anchored pattern, which the error of a validator names; None for others."""
    return _RULES.get(str(pattern))


def check_cursor_name(name: str) -> None:
    """Raise ValueError for a name that no cursor can have, TypeError for one that is not text."""
    check_text("the name of a cursor", name)
    if CURSOR_NAME.pattern.fullmatch(name) is None:
        raise ValueError(f"the name of a cursor {CURSOR_NAME.refusal(name)}")


def check_idempotency_key(key: str) -> None:
    """Raise ValueError for a key that no append can have, TypeError for one that is not text."""
    check_text("an idempotency key", key)
    if IDEMPOTENCY_KEY.pattern.fullmatch(key) is None:
        raise ValueError(f"an idempotency key {IDEMPOTENCY_KEY.refusal(key)}")


def check_token(token: str) -> None:
    """Raise ValueError, whose message does not contain the token, for one that no header can carry, and
    TypeError for one that is not text."""
    check_text("token", token)
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("token must consist of visible ASCII characters, without blanks and line breaks")


def check_log_name(name: str) -> None:
    """Raise ValueError for a name that no log can have, not even one of the system; TypeError for one that is
    not text."""
    check_text("the name of a log", name)
    if LOG_NAME.pattern.fullmatch(name.removeprefix(SYSTEM)) is None:
        raise ValueError(f"the name of a log {LOG_NAME.refusal(name)}")
