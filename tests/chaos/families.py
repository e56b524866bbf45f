"""All families of faults, by name."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.chaos import leaders
from tests.chaos.session import World


@dataclass(frozen=True)
class Family:
    """run: raises AssertionError or CannotRun; all else it finds goes to the world's report.

    limit_s: at full scale; past it, the family is ended and has failed.
    """

    run: Callable[[World], Awaitable[None]]
    limit_s: int


FAMILIES: dict[str, Family] = {
    "kill-leader": Family(leaders.kill_leader, 600),
    "machine-lost": Family(leaders.lose_leader_machine, 400),
    "stop-leader": Family(leaders.stop_leader, 400),
}
