"""All families of faults, by name."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.chaos.families import (
    classic,
    damage,
    disks,
    leaders,
    masters,
    members,
    mixed,
    networks,
    operated,
    operations,
    simulated,
    startup,
    tails,
)
from tests.chaos.session import World
from tests.chaos.spark import materialized, sinks


@dataclass(frozen=True)
class Family:
    """run: raises AssertionError or CannotRun; all else it finds goes to the world's report.

    limit_s: at full scale, several times what it takes; past it, the family is ended and has failed.
    """

    run: Callable[[World], Awaitable[None]]
    limit_s: int


FAMILIES: dict[str, Family] = {
    "kill-leader": Family(leaders.kill_leader, 1_200),
    "machine-lost": Family(leaders.lose_leader_machine, 800),
    "stop-leader": Family(leaders.stop_leader, 800),
    "transfer": Family(members.transfer, 600),
    "replace-members": Family(members.replace_members, 600),
    "pause": Family(networks.pause, 800),
    "partition": Family(networks.partition, 1_800),
    "flaky": Family(networks.flaky, 800),
    "slow-links": Family(networks.slow_links, 600),
    "power-cut": Family(disks.power_cut, 1_200),
    "power-cut-replicated": Family(disks.power_cut_replicated, 600),
    "disk-errors": Family(disks.disk_errors, 600),
    "read-errors": Family(disks.read_errors, 300),
    "full-disk": Family(disks.full_disk, 400),
    "damage": Family(damage.damage, 3_000),
    "mixed": Family(mixed.mixed, 1_800),
    "operate-raft": Family(operated.operate_raft, 2_400),
    "operate-masters": Family(operated.operate_masters, 2_400),
    "operate-classic": Family(operated.operate_classic, 2_400),
    "trim-power-cut": Family(operations.trim_and_cut_power, 1_200),
    "remove-leader": Family(operations.remove_leader, 900),
    "replace-disk": Family(operations.replace_disk, 900),
    "one-way-port": Family(operations.one_way_port, 600),
    "rolling-settings": Family(operations.roll_settings, 900),
    "kill-master": Family(masters.kill_master, 1_200),
    "kill-controller": Family(masters.kill_controller, 800),
    "cut-master": Family(masters.cut_master, 600),
    "classic": Family(classic.classic, 900),
    "torn-tails": Family(tails.tails, 2_400),
    "sim-controller": Family(simulated.controller_mode, 2_400),
    "spark-kill-driver": Family(materialized.kill_driver, 2_400),
    "spark-two-drivers": Family(materialized.two_drivers, 1_200),
    "spark-leader-killed": Family(materialized.kill_read_replica, 1_200),
    "spark-sink-kill": Family(sinks.kill_sink, 1_800),
    "startup": Family(startup.startup, 1_200),
}
