"""Identity of a caller: the scopes and logs of its token, and the limits of its requests."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from app.controller.metadata import AUDIT_LOG
from app.errors import Forbidden, RateLimited, Unauthenticated

ALL_LOGS: Final = ("*",)
BURST_S: Final = 1.0  # a token may spend the requests of this time at once


class Scope(StrEnum):
    """Rights of a token. ADMIN does not include the others."""

    READ = "read"
    APPEND = "append"
    CURSORS = "cursors"
    ADMIN = "admin"


ALL_SCOPES: Final = frozenset(Scope)
TO_READ: Final = frozenset((Scope.READ,))
TO_APPEND: Final = frozenset((Scope.APPEND,))


@dataclass(frozen=True, kw_only=True)
class Grant:
    """Permissions of one token.

    name: identifies the token in logs and in the audit log; it is not secret.
    logs: names of logs; a trailing `*` makes one a prefix.
    requests_per_s, in_flight: limits at each node; None: unlimited.
    """

    name: str
    scopes: frozenset[Scope]
    logs: tuple[str, ...] = ALL_LOGS
    requests_per_s: float | None = None
    in_flight: int | None = None

    def __str__(self) -> str:
        """Return what the token permits, as the end of a sentence about it."""
        scopes = " and ".join(f"`{scope}`" for scope in sorted(self.scopes)) or "no scope"
        logs = "every log" if self.logs == ALL_LOGS else f"the logs {', '.join(self.logs)}"
        return f"it has {scopes} for {logs}"

    def covers(self, log: str) -> bool:
        """Return whether the grant is for that log."""
        for pattern in self.logs:
            if log.startswith(pattern[:-1]) if pattern.endswith("*") else log == pattern:
                return True
        return False


class Caller:
    """The holder of one token at this node. Owned by the event loop.

    Every request calls `enter`, and `leave` when it has been answered.
    """

    __slots__ = ("_available", "_clock_s", "_filled_s", "grant", "in_flight", "revoked")

    def __init__(self, grant: Grant, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.grant = grant
        self.in_flight = 0
        self.revoked = False  # the tokens file names the token no longer
        self._clock_s = clock_s
        self._filled_s = clock_s()
        self._available = math.inf  # requests; reduced to the burst by the first one

    @property
    def name(self) -> str:
        return self.grant.name

    def may(self, scopes: frozenset[Scope], log: str | None) -> bool:
        """Return whether the caller has one of the scopes for that log; log None: for all logs.

        The audit log requires `admin` in every case.
        """
        grant = self.grant
        if log == AUDIT_LOG:
            scopes = frozenset((Scope.ADMIN,))
        if scopes.isdisjoint(grant.scopes):
            return False
        return grant.covers(log) if log is not None else "*" in grant.logs

    def holds(self, before: Grant) -> bool:
        """Return whether the token still has the rights of an earlier grant: a call may last for days."""
        now = self.grant
        if now is before:
            return not self.revoked
        return not self.revoked and now.scopes >= before.scopes and now.logs in (before.logs, ALL_LOGS)

    def revocation(self) -> Unauthenticated:
        """Return the refusal of a read whose token no longer `holds` what it had at its beginning."""
        return Unauthenticated(f"the token {self.name} was removed or lost rights during the request")

    def require(self, scopes: frozenset[Scope], log: str | None) -> None:
        """Raise Forbidden if `may` is false."""
        if self.may(scopes, log):
            return
        if log == AUDIT_LOG:
            scopes = frozenset((Scope.ADMIN,))
        place = "for all logs" if log is None else f"for log {log!r}"
        raise Forbidden(
            f"the token {self.name} does not have the scope {_listed(scopes)} {place}; {self.grant}"
        )

    def require_any(self, scopes: frozenset[Scope]) -> None:
        """Raise Forbidden if the caller has none of the scopes, for any log."""
        if scopes.isdisjoint(self.grant.scopes):
            raise Forbidden(f"the token {self.name} does not have the scope {_listed(scopes)}; {self.grant}")

    def sees(self, log: str) -> bool:
        """Return whether lists of logs contain that log for this caller."""
        return self.may(ALL_SCOPES, log)

    @property
    def has_rate_limit(self) -> bool:
        return self.grant.requests_per_s is not None

    def spend(self) -> None:
        """Count one request against the rate limit. Raises RateLimited: it does not count."""
        rate = self.grant.requests_per_s
        if rate is None:
            return
        now_s = self._clock_s()
        most = max(1.0, rate * BURST_S)
        available = min(most, self._available + (now_s - self._filled_s) * rate)
        self._available, self._filled_s = available, now_s
        if available < 1.0:
            raise RateLimited(
                f"the token {self.name} permits {rate:g} requests per second at each node",
                retry_after_s=math.ceil((1.0 - available) / rate),
            )
        self._available = available - 1.0

    def enter(self) -> None:
        """A request begins. Raises RateLimited: it has not entered."""
        most = self.grant.in_flight
        if most is not None and self.in_flight >= most:
            raise RateLimited(f"the token {self.name} permits {most} requests in flight at each node")
        self.spend()
        self.in_flight += 1

    def leave(self) -> None:
        """A request that entered has ended."""
        self.in_flight -= 1


def _listed(scopes: frozenset[Scope]) -> str:
    return " or ".join(f"`{scope}`" for scope in sorted(scopes))


UNRESTRICTED: Final = Grant(name="anonymous", scopes=ALL_SCOPES)  # while no tokens are configured
ANONYMOUS: Final = Grant(name="anonymous", scopes=frozenset(), logs=())  # at an open route
