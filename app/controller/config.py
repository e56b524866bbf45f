"""Constants of the C rules with their defaults: `[controller]` of the configuration file."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from app.errors import ConfigError
from app.raft.config import check_timeouts

HEARTBEATS_IN_A_TIMEOUT: Final = 3  # of the leader of `__controller`, in its shortest election timeout
CHANGEABLE_AT_RUN_TIME: Final = (
    "broker_timeout_ms",
    "lease_ms",
    "scan_interval_ms",
    "trim_after_records",
    "elect_unclean",
)


@dataclass(frozen=True, kw_only=True)
class ControllerConfig:
    """Times are monotonic milliseconds. Raises ConfigError for values that contradict.

    RocketMQ's values: heartbeat 1 000, timeout 10 000, lease 8 000.
    """

    nodes: tuple[str, ...] = ()
    """Ids of the nodes that vote in `__controller` and keep no other log by default; empty: every node
    votes."""
    heartbeat_interval_ms: int = 500
    """Interval of a node's heartbeats to the active controller (C-05)."""
    broker_timeout_ms: int = 2_000
    """Silence after which a node counts as dead (C-05). Can be changed at run time."""
    lease_ms: int = 1_500
    """Length of a master's lease for masters elected from now on; the master itself uses nine tenths
    (A-11). Can be changed at run time."""
    retry_interval_ms: int = 100
    """Pause before an unanswered request is sent again to the controller that is active then."""
    scan_interval_ms: int = 50
    """Interval at which the active controller looks for dead masters (C-05). Can be changed at run time."""
    election_timeout_ms: tuple[int, int] = (300, 600)
    """Range of election timeouts of the log `__controller`, from 3. Its heartbeats have a third of the lower
    end, or `heartbeat_interval_ms` of `[raft]` if that is shorter."""
    trim_after_records: int = 10_000
    """Records of `__controller` covered by a snapshot after which that log is trimmed (C-09). Can be
    changed at run time."""
    elect_unclean: bool = False
    """Allow unclean elections of every log, as `unclean` of a log does (C-05; RocketMQ:
    enableElectUncleanMaster). Can be changed at run time."""

    @property
    def confirmed_interval_ms(self) -> int:
        """Interval at which the metadata record what a log's copies report as confirmed, if that moves."""
        return 5 * self.broker_timeout_ms

    @property
    def opening_timeout_ms(self) -> int:
        """Time in which a living master must open its epoch before another member is elected."""
        return 2 * self.broker_timeout_ms

    @property
    def full_disk_timeout_ms(self) -> int:
        """Time for which a master may have no disk space before another member is elected."""
        return 2 * self.broker_timeout_ms

    @property
    def full_disk_remembered_ms(self) -> int:
        """Time for which a replica that had no disk space is not preferred to a master without any."""
        return 150 * self.broker_timeout_ms

    @property
    def registering_timeout_ms(self) -> int:
        """Time for which an unclean election that no operator requests waits for a member whose node has
        started and has yet to register it."""
        return 30 * self.broker_timeout_ms

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, int) and not isinstance(value, bool) and value <= 0:
                raise ConfigError(f"{name} must be positive, got {value}")
        if len(set(self.nodes)) != len(self.nodes):
            raise ConfigError(f"nodes must be unique: {', '.join(self.nodes)}")
        check_timeouts(self.election_timeout_ms, HEARTBEATS_IN_A_TIMEOUT)
        if self.lease_ms >= self.broker_timeout_ms:
            raise ConfigError(
                f"lease_ms must be below broker_timeout_ms ({self.broker_timeout_ms}), because a lease ends "
                f"before an election, got {self.lease_ms}"
            )
        if self.heartbeat_interval_ms * 2 > self.lease_ms:
            raise ConfigError(
                f"lease_ms must be at least {2 * self.heartbeat_interval_ms}, two heartbeat_interval_ms, "
                f"got {self.lease_ms}"
            )
        if self.retry_interval_ms > self.heartbeat_interval_ms:
            raise ConfigError(
                f"retry_interval_ms must be at most {self.heartbeat_interval_ms}, heartbeat_interval_ms, "
                f"got {self.retry_interval_ms}"
            )


def changed_config(config: ControllerConfig, changes: Mapping[str, Any]) -> ControllerConfig:
    """Return the configuration of the file with the settings that were changed at run time.

    changes: as the metadata have them. Raises ConfigError for values that contradict each other or the file.
    """
    return replace(config, **{name: changes[name] for name in CHANGEABLE_AT_RUN_TIME if name in changes})


def check_changes(config: ControllerConfig, changes: Mapping[str, Any]) -> None:
    """Raise ConfigError for a setting that cannot be changed at run time, or a value of another type."""
    for name, value in changes.items():
        if name not in CHANGEABLE_AT_RUN_TIME:
            allowed = ", ".join(CHANGEABLE_AT_RUN_TIME)
            raise ConfigError(f"{name} cannot be changed at run time; {allowed} can")
        if value is not None and type(value) is not type(getattr(config, name)):
            raise ConfigError(f"{name} must be {type(getattr(config, name)).__name__}, got {value!r}")
    changed_config(config, {name: value for name, value in changes.items() if value is not None})
