"""Constants of the A, C-07 and H rules with their defaults: `[ha]` of the configuration file."""

from dataclasses import dataclass, fields

from app.errors import check
from app.ha.roles import ADDRESS_MAX_BYTES
from storage.units import KIB, MIB

CONNECT_MS = 2_000  # a connection is there within this time, or it is tried again


@dataclass(frozen=True, kw_only=True)
class HaConfig:
    """Times are monotonic milliseconds, sizes bytes. Raises ConfigError for values that contradict."""

    ha_send_heartbeat_interval_ms: int = 200
    """Interval of heartbeats on an idle connection between master and slave (H-02; RocketMQ: 5 000)."""
    ha_housekeeping_interval_ms: int = 2_000
    """Silence after which a connection between master and slave is closed (H-05; RocketMQ: 20 000)."""
    ha_transfer_batch_size: int = 32 * KIB
    """Bytes of the log in one frame to a slave, at most 4 MiB (H-06; RocketMQ: the same)."""
    ha_max_time_slave_not_catchup_ms: int = 1_500
    """Time without having everything after which a slave leaves the SyncStateSet (C-07; RocketMQ: 15 000), or
    in classic mode counts as out of sync for `auto_in_sync_replicas`.
    With less than `ha_send_heartbeat_interval_ms` and, of `[controller]`, two `heartbeat_interval_ms` and
    `retry_interval_ms` together (1 300 by default), a master that receives nothing, because the network fails
    in one direction, may become the only member of its SyncStateSet: then no other is elected."""
    ha_reconnect_interval_ms: int = 300
    """Pause before a slave connects to its master again (H-01; RocketMQ: 5 000)."""
    ha_handshake_timeout_ms: int = 2_000
    """Time after which a connection without a valid handshake is closed."""
    ha_window_bytes: int = MIB
    """Bytes handed to one connection before it must report room for more."""
    ha_watermarks_interval_ms: int = 3_000
    """Interval at which a master publishes its watermarks while nothing changes (D-22)."""
    ha_watermarks_moving_interval_ms: int = 500
    """Shortest interval at which a master publishes watermarks that move (D-22)."""
    ha_disk_timeout_ms: int = 10_000
    """Time after which a master in controller mode whose disk completes no sync gives its role up, if there
    is another in-sync replica."""
    ha_read_index_timeout_ms: int = 1_000
    """Time within which the master must answer a slave that asks for the index of a linearizable read."""
    ha_refused_interval_max_ms: int = 10_000
    """Longest pause of a slave in classic mode whose connections end before the first frame."""
    ha_opening_wait_ms: int | None = None
    """Time that a classic master which takes a log over waits for replicas it does not hear; absent:
    housekeeping
    plus reconnect interval plus 2 000."""
    ha_flow_control: bool = False
    """Limit the bytes per second sent to a slave (RocketMQ: haFlowControlEnable)."""
    ha_max_transfer_bytes_per_s: int = 100 * MIB
    """Bytes per second sent to one slave with `ha_flow_control`; in controller mode only outside the
    SyncStateSet."""
    ha_sync_from_last_file: bool = False
    """Start an empty AutoSwitch slave at the last segment; it stays a learner until older records are
    trimmed (A-09)."""
    ha_handshake_by_number: bool | None = None
    """Use the 16-byte handshake of newer versions as a slave; absent: only when this node's address is
    longer than
    50 bytes (A-07)."""

    @property
    def max_transfer_bytes_per_s(self) -> int | None:
        """Bytes per second that one slave may get, None for no limit."""
        return self.ha_max_transfer_bytes_per_s if self.ha_flow_control else None

    @property
    def opening_wait_ms(self) -> int:
        """Time that a classic master which takes a log over waits for replicas that it does not hear."""
        if self.ha_opening_wait_ms is not None:
            return self.ha_opening_wait_ms
        return self.ha_housekeeping_interval_ms + self.ha_reconnect_interval_ms + CONNECT_MS

    def speaks_by_number(self, address: str) -> bool:
        """True if a slave at that address names itself by its replica id, not by the address."""
        if self.ha_handshake_by_number is None:
            return len(address.encode()) > ADDRESS_MAX_BYTES
        return self.ha_handshake_by_number

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None and not isinstance(value, bool):
                check(value > 0, f"{item.name} must be positive, got {value}")
        heartbeat_ms = self.ha_send_heartbeat_interval_ms
        for name in ("ha_housekeeping_interval_ms", "ha_max_time_slave_not_catchup_ms"):
            most = getattr(self, name) // 2
            check(
                heartbeat_ms <= most,
                f"ha_send_heartbeat_interval_ms must be at most {most}, half of {name}, got {heartbeat_ms}",
            )
        least, given = self.ha_reconnect_interval_ms, self.ha_refused_interval_max_ms
        check(
            given >= least,
            f"ha_refused_interval_max_ms must be at least {least}, ha_reconnect_interval_ms, got {given}",
        )
        check(
            self.ha_transfer_batch_size <= 4 * MIB,
            f"ha_transfer_batch_size must be at most {4 * MIB} bytes, got {self.ha_transfer_batch_size}",
        )
