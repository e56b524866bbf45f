"""The constants of the D and R rules, with our defaults: `[raft]` of the configuration file (docs/api.md
§7)."""

from dataclasses import dataclass, fields

from app.errors import ConfigError

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, kw_only=True)
class RaftConfig:
    """Times are monotonic milliseconds, sizes bytes. Raises ConfigError for values that contradict."""

    tick_interval_ms: int = 20  # how often the node's timer calls `tick`: the grain of every time below
    election_timeout_ms: tuple[int, int] = (500, 1_000)  # drawn anew each time; the upper one bounds R-04
    heartbeat_interval_ms: int = 100

    max_pending: int = 1_000  # pushes in flight to one peer, D-04
    max_pending_bytes: int = 64 * MIB  # bytes in flight to one peer
    push_max_bytes: int = MIB  # batches that share one push; a larger batch travels alone
    max_push_timeout_ms: int = 1_000  # then push the lost batch again, D-07
    compare_timeout_ms: int = 3_000  # then ask again, D-11
    leak_check_interval_ms: int = 1_000  # D-08, D-27
    # D-05. With news (a committed index that the peer has not been told) one timer tick: readers at a
    # follower wait for exactly this message when no next push carries it. Without news a COMMIT only checks
    # that the peer still holds what it acknowledged, and the article's second will do.
    commit_interval_ms: int = 20
    idle_commit_interval_ms: int = 1_000
    peer_push_throttle_point_bytes: int = 300 * MIB  # D-09
    peer_push_quota_bytes_per_s: int = 20 * MIB  # D-09

    fast_forward_timeout_ms: int = 1_000  # D-18, and how often it is looked at
    max_waiting: int = 1_000  # early appends kept by a follower, D-16
    max_waiting_bytes: int = 64 * MIB

    watermarks_interval_ms: int = 3_000  # D-22
    watermarks_moving_interval_ms: int = 500
    read_index_timeout_ms: int = 1_000  # then the read is not confirmed
    max_waiting_reads: int = 10_000  # reads of one log that wait for a confirmation; more are refused, R-08
    level_lag_bytes: int = MIB  # a learner that lags no further may be promoted, R-10
    full_disk_transfer_ms: int = 3_000  # a leader whose disk has no room for so long hands over, R-09
    transfer_catch_up_ms: int = 5_000  # the next leader comes level within it, or the transfer fails, R-09
    transfer_round_ms: int = 200  # it lags by no more: then appends wait until it leads
    preferred_leader_interval_ms: int = 5_000  # how often a leader considers the preferred one
    # A preferred leader that does not take over, or loses the lead earlier than kept_ms, is offered the lead
    # again after a pause that doubles with each failure in a row.
    preferred_leader_kept_ms: int = 60_000
    preferred_leader_pause_max_ms: int = 300_000

    # Calls to a node that is not a member of any log: the longest pause between two, and how long without a
    # connection until it is forgotten, unless the configuration names it.
    removed_retry_ms: int = 30_000
    removed_forget_ms: int = 300_000

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            numbers = value if isinstance(value, tuple) else (value,)
            if any(number <= 0 for number in numbers):
                raise ConfigError(f"{item.name} must be positive")
        shortest, longest = self.election_timeout_ms
        if shortest >= longest:
            raise ConfigError("election_timeout_ms must be a range: the smaller number first")
        if self.heartbeat_interval_ms * 2 > shortest:
            raise ConfigError("heartbeat_interval_ms must be at most half of the shortest election timeout")
        if self.tick_interval_ms > self.heartbeat_interval_ms:
            raise ConfigError("tick_interval_ms must be at most heartbeat_interval_ms")
        if self.push_max_bytes > self.max_pending_bytes:
            raise ConfigError("push_max_bytes must be at most max_pending_bytes")
