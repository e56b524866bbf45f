"""All families of faults, by name."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.chaos import damage, disks, leaders, members, networks, startup, tails
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
    "transfer": Family(members.transfer, 300),
    "replace-members": Family(members.replace_members, 300),
    "pause": Family(networks.pause, 400),
    "partition": Family(networks.partition, 900),
    "flaky": Family(networks.flaky, 400),
    "slow-links": Family(networks.slow_links, 300),
    "power-cut": Family(disks.power_cut, 600),
    "power-cut-replicated": Family(disks.power_cut_replicated, 300),
    "disk-errors": Family(disks.disk_errors, 300),
    "read-errors": Family(disks.read_errors, 150),
    "full-disk": Family(disks.full_disk, 200),
    "damage": Family(damage.damage, 1_500),
    "torn-tails": Family(tails.tails, 1_200),
    "startup": Family(startup.startup, 600),
}
