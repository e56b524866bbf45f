"""The constants of the A, C-07 and H rules: `[ha]` of the configuration file; RocketMQ's beside ours."""

from dataclasses import dataclass, fields

from app.errors import ConfigError
from app.ha.roles import ADDRESS_MAX_BYTES

KIB = 1024
MIB = 1024 * KIB
CONNECT_MS = 2_000  # a connection is there within this time, or it is tried again


@dataclass(frozen=True, kw_only=True)
class HaConfig:
    """Times are monotonic milliseconds, sizes bytes. Raises ConfigError for values that contradict."""

    ha_send_heartbeat_interval_ms: int = 200  # H-02; RocketMQ: 5 000
    ha_housekeeping_interval_ms: int = 2_000  # H-05; RocketMQ: 20 000
    ha_transfer_batch_size: int = 32 * KIB  # H-06
    ha_max_time_slave_not_catchup_ms: int = 1_500  # C-07; RocketMQ: 15 000
    ha_reconnect_interval_ms: int = 300  # H-01; RocketMQ: 5 000
    ha_handshake_timeout_ms: int = 2_000  # until a connection that says nothing (useful) is closed
    ha_window_bytes: int = MIB  # handed to one connection before it says that it has room for more
    ha_watermarks_interval_ms: int = 3_000  # a master tells the journal where everybody stands
    ha_watermarks_moving_interval_ms: int = 500  # ... at most so often while they move
    ha_read_index_timeout_ms: int = 1_000  # a slave asks its master what a linearizable read must see
    ha_refused_interval_max_ms: int = 10_000  # a slave whose connections end before a frame retries so often
    # A classic master that takes a log over hears the others first. They need ha_housekeeping_interval_ms
    # to notice that a connection is dead, and ha_reconnect_interval to come back.
    # None: so long, and as long as a connection may take.
    ha_opening_wait_ms: int | None = None
    ha_flow_control: bool = False  # RocketMQ: haFlowControlEnable
    ha_max_transfer_bytes_per_s: int = 100 * MIB  # to one slave, with flow control
    # an empty AutoSwitch slave starts at the last segment. It is a learner, outside of the
    # SyncStateSet, until the older records are trimmed.
    ha_sync_from_last_file: bool = False
    # As a slave, speak the 16-byte handshake of newer builds. None: when this node's address is longer than
    # the 50 bytes that the seed's handshake has for it.
    ha_handshake_by_number: bool | None = None

    @property
    def max_transfer_bytes_per_s(self) -> int | None:
        """Bytes per second that one slave may get, None for no limit."""
        return self.ha_max_transfer_bytes_per_s if self.ha_flow_control else None

    @property
    def opening_wait_ms(self) -> int:
        """How long a classic master that takes a log over waits for replicas that it does not hear."""
        if self.ha_opening_wait_ms is not None:
            return self.ha_opening_wait_ms
        return self.ha_housekeeping_interval_ms + self.ha_reconnect_interval_ms + CONNECT_MS

    def speaks_by_number(self, address: str) -> bool:
        """Whether a slave at that address names itself by its replica id, not by the address."""
        if self.ha_handshake_by_number is None:
            return len(address.encode()) > ADDRESS_MAX_BYTES
        return self.ha_handshake_by_number

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None and not isinstance(value, bool) and value <= 0:
                raise ConfigError(f"{item.name} must be positive")
        if self.ha_send_heartbeat_interval_ms * 2 > self.ha_housekeeping_interval_ms:
            raise ConfigError(
                "ha_send_heartbeat_interval_ms must be at most half of ha_housekeeping_interval_ms"
            )
        if self.ha_send_heartbeat_interval_ms * 2 > self.ha_max_time_slave_not_catchup_ms:
            raise ConfigError(
                "ha_send_heartbeat_interval_ms must be at most half of ha_max_time_slave_not_catchup_ms"
            )
        if self.ha_refused_interval_max_ms < self.ha_reconnect_interval_ms:
            raise ConfigError("ha_refused_interval_max_ms must be at least ha_reconnect_interval_ms")
        if self.ha_transfer_batch_size > 4 * MIB:
            raise ConfigError("ha_transfer_batch_size must be at most 4 MiB")
