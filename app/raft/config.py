"""Constants of the D and R rules with their defaults: `[raft]` of the configuration file (docs/api.md §7)."""

from dataclasses import dataclass, fields
from typing import Final

from app.errors import check
from storage.units import MIB

COMMIT_INTERVAL_MAX_MS: Final = 60_000


@dataclass(frozen=True, kw_only=True)
class RaftConfig:
    """Times are monotonic milliseconds, sizes bytes. Raises ConfigError for values that contradict."""

    tick_interval_ms: int = 20
    """Interval of the node's timer; the resolution of every other time of this section. While no log of the
    node has changed for a second, the timer ticks with the heartbeats that arrive, once in each interval of
    them, and when a heartbeat or an election is due; without any after one and a half intervals."""
    election_timeout_ms: tuple[int, int] = (500, 1_000)
    """Range from which a follower draws its election timeout; its upper end bounds the leader's own check
    (R-04)."""
    heartbeat_interval_ms: int = 100
    """Interval of the leader's heartbeats, at most half of the shortest election timeout (R-04)."""

    max_pending: int = 1_000
    """Pushes in flight to one peer (D-04)."""
    max_pending_bytes: int = 64 * MIB
    """Bytes in flight to one peer (D-04)."""
    push_max_bytes: int = MIB
    """Bytes of batches that share one push; a larger batch is sent alone."""
    max_push_timeout_ms: int = 1_000
    """Time without an acknowledgement after which a push is sent again (D-07)."""
    compare_timeout_ms: int = 3_000
    """Time without an answer after which a COMPARE is sent again (D-11)."""
    leak_check_interval_ms: int = 1_000
    """Interval of the search for pushes and appends whose answers were lost (D-08, D-27)."""
    commit_interval_ms: int = 20
    """Delay of a COMMIT message that carries a committed index which the peer does not know yet (D-05), at
    most 60 000: a follower is not ready before the first one."""
    idle_commit_interval_ms: int = 1_000
    """Interval of COMMIT messages that carry nothing new and check what the peer holds (D-05)."""
    peer_push_throttle_point_bytes: int = 300 * MIB
    """Lag of a peer beyond which the leader limits the bytes per second pushed to it (D-09)."""
    peer_push_quota_bytes_per_s: int = 20 * MIB
    """Bytes per second pushed to a throttled peer (D-09)."""

    fast_forward_timeout_ms: int = 1_000
    """Wait of an early push at a follower before it reports INCONSISTENT_STATE, and the interval of that
    check (D-18)."""
    max_waiting: int = 1_000
    """Pushes that a follower keeps because they arrived before their predecessor (D-16)."""
    max_waiting_bytes: int = 64 * MIB
    """Bytes of the pushes that a follower keeps because they arrived early (D-16)."""

    watermarks_interval_ms: int = 3_000
    """Interval at which a leader publishes its watermarks while nothing changes (D-22)."""
    watermarks_moving_interval_ms: int = 500
    """Shortest interval at which a leader publishes watermarks that move (D-22)."""
    read_index_timeout_ms: int = 1_000
    """Time within which a quorum must confirm leadership for a linearizable read (R-08)."""
    max_waiting_reads: int = 10_000
    """Reads of one log that wait for a confirmation; more are refused (R-08)."""
    level_lag_bytes: int = MIB
    """Largest lag with which a learner may be promoted (R-10)."""
    full_disk_transfer_ms: int = 3_000
    """Time without room on its disk after which a leader hands leadership to a voter that has room (R-09)."""
    transfer_catch_up_ms: int = 5_000
    """Time within which the next leader must catch up, or the transfer fails (R-09)."""
    transfer_round_ms: int = 200
    """Lag of the next leader below which new appends wait until it leads (R-09)."""
    preferred_leader_interval_ms: int = 5_000
    """Interval at which a leader considers a transfer to the preferred leader."""
    preferred_leader_kept_ms: int = 60_000
    """Time that a preferred leader must keep leadership; losing it earlier counts as a failure."""
    preferred_leader_pause_max_ms: int = 300_000
    """Longest pause before a preferred leader that failed is offered leadership again; the pause doubles
    with each failure."""

    removed_retry_ms: int = 30_000
    """Longest pause between two calls to a node that is not a member of any log (R-10)."""
    removed_forget_ms: int = 300_000
    """Time without a connection after which a node that is not a member and not in the file is forgotten
    (R-10)."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not isinstance(value, tuple):
                check(value > 0, f"{item.name} must be positive, got {value}")
        check_timeouts(self.election_timeout_ms, 1)
        bounds = (
            (
                "heartbeat_interval_ms",
                self.election_timeout_ms[0] // 2,
                "half of the shortest election timeout",
            ),
            ("tick_interval_ms", self.heartbeat_interval_ms, "heartbeat_interval_ms"),
            ("push_max_bytes", self.max_pending_bytes, "max_pending_bytes"),
            ("commit_interval_ms", self.idle_commit_interval_ms, "idle_commit_interval_ms"),
            ("commit_interval_ms", COMMIT_INTERVAL_MAX_MS, "because a follower waits for the first COMMIT"),
        )
        for name, most, why in bounds:
            value = getattr(self, name)
            check(value <= most, f"{name} must be at most {most}, {why}, got {value}")


def check_timeouts(timeout_ms: tuple[int, int], least_ms: int) -> None:
    """Raise ConfigError for election timeouts that are not a range from least_ms."""
    shortest, longest = timeout_ms
    check(
        least_ms <= shortest < longest,
        f"election_timeout_ms must be a range from at least {least_ms}, the smaller number first, "
        f"got [{shortest}, {longest}]",
    )
