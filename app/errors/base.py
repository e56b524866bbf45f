"""Base class of all refusals (docs/api.md §2, RFC 9457), and ConfigError."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, ClassVar, Final
from urllib.parse import quote

_PATH_SAFE: Final = "/:@!$&'()*+,;=~"  # besides the unreserved characters (RFC 3986, section 3.3)


class ConfigError(Exception):
    """A configuration that cannot work; raised before anything starts (exit code 2)."""


def check(holds: bool, complaint: str) -> None:
    """Raise ConfigError(complaint) unless `holds`."""
    if not holds:
        raise ConfigError(complaint)


class Outcome(StrEnum):
    """Outcome of an append. NOT_APPLIED only when that is certain."""

    NOT_APPLIED = "not_applied"
    APPLIED = "applied"
    UNKNOWN = "unknown"


class CommitlogError(Exception):
    """A refusal. The docstring of each class is its page at /problems/{code}."""

    code: ClassVar[str]
    title: ClassVar[str]
    http_status: ClassVar[int]
    retryable: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = Outcome.NOT_APPLIED
    retry_after_s: ClassVar[int | None] = None

    def __init__(self, detail: str | None = None) -> None:
        self.detail = detail or self.title
        super().__init__(self.detail)

    def fields(self) -> dict[str, Any]:
        """Return the members of the problem document beyond the common ones."""
        return {}

    def headers(self) -> Iterator[tuple[str, str]]:
        """Yield the response headers of this refusal."""
        if self.retry_after_s is not None:
            yield "retry-after", str(self.retry_after_s)

    def problem(self, instance: str, request_id: str) -> dict[str, Any]:
        """Return the problem document (docs/api.md §2). instance: path of the request."""
        return {
            "type": f"/problems/{self.code}",
            "title": self.title,
            "status": self.http_status,
            "detail": self.detail,
            "instance": quote(instance, safe=_PATH_SAFE),
            "code": self.code,
            "retryable": self.retryable,
            "outcome": self.outcome.value,
            "request_id": request_id,
            **self.fields(),
        }
