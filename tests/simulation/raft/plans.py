"""Clusters by seed: calm ones that run long, and storms, short and dense."""

from dataclasses import dataclass, field, replace
from random import Random

from app.log.contract import Durability
from app.log.driver_interfaces import DriverConfig
from app.raft.config import RaftConfig
from storage.log.commitlog import CommitlogConfig
from tests.simulation.raft.faults import WEIGHTS, FaultPlan
from tests.simulation.world.disk import DiskTiming
from tests.simulation.world.network import LinkFaults

KIB = 1024
DAY_MS = 24 * 60 * 60 * 1000
SHORT_IDEMPOTENCY_MS = 30_000
SMALL_SEGMENTS = CommitlogConfig(segment_max_bytes=64 * KIB, mark_interval_bytes=16 * KIB)
# Nothing stays in memory: every read of a follower that is behind goes to the disk.
TINY_SEGMENTS = CommitlogConfig(
    segment_max_bytes=16 * KIB, mark_interval_bytes=4 * KIB, tail_cache_bytes=2 * KIB
)
# Slower than the defaults, with a coarser timer: nothing depends on it but how often nothing happens.
CALM_TIMING = RaftConfig(
    tick_interval_ms=200,
    heartbeat_interval_ms=400,
    election_timeout_ms=(1_000, 2_000),
    commit_interval_ms=200,
    watermarks_moving_interval_ms=2_000,
)
STORM_TIMING = RaftConfig(tick_interval_ms=50, heartbeat_interval_ms=100, election_timeout_ms=(250, 500))
CALM_LINKS = LinkFaults(loss=0.02, duplication=0.02, holding=0.02)
STORM_LINKS = LinkFaults(max_delay_us=60_000, loss=0.05, duplication=0.1, holding=0.05)
CALM_DISK = DiskTiming()
# Operations that still find a defect that is known; each is removed from here with its fix.
SWITCHED_OFF: frozenset[str] = frozenset()
USED_WEIGHTS = {kind: weight for kind, weight in WEIGHTS.items() if kind not in SWITCHED_OFF}
CALM_FAULTS = FaultPlan(weights=USED_WEIGHTS)
STORM_FAULTS = FaultPlan(pause_us=(10_000, 800_000), lasting_us=(10_000, 900_000), weights=USED_WEIGHTS)
STORM_DISK = DiskTiming(sync_us=(50, 20_000), slow_chance=0.05, slow_us=300_000)
NODE_COUNTS = (3, 3, 3, 5, 3, 1, 3, 3, 3, 1)
STORM_SHARE = 0.25  # of the simulated time of a calm seed


@dataclass(frozen=True, kw_only=True)
class SimulatedLimits:
    """app.node.services.LogLimits."""

    max_pending_requests: int = 1_000
    max_pending_bytes: int = 16 * 1024 * KIB
    max_idempotency_keys: int = 100_000
    max_producers: int = 10_000
    max_cursors: int = 1_000
    idempotency_ms: int = DAY_MS


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """Settings of one node's configuration file; a rolling restart may change them node by node."""

    raft: RaftConfig
    storage: CommitlogConfig
    driver: DriverConfig
    limits: SimulatedLimits


@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """Parameters of one run. share: of the simulated time that the command line asks for."""

    nodes: int = 3  # that make up the group at first
    spares: int = 0  # that may become members
    clients: int = 4
    durability: Durability = Durability.FSYNC
    raft: RaftConfig = CALM_TIMING
    storage: CommitlogConfig = SMALL_SEGMENTS
    driver: DriverConfig = field(
        default_factory=lambda: DriverConfig(snapshot_interval_ms=5_000, state_chunk_bytes=2 * KIB)
    )
    think_us: tuple[int, int] = (1_000, 1_200_000)  # of each client
    read_pause_us: tuple[int, int] | None = None  # of the one that only reads, anywhere; None: there is none
    links: LinkFaults = CALM_LINKS
    disk: DiskTiming = CALM_DISK
    faults: FaultPlan | None = CALM_FAULTS
    idempotency_ms: int = DAY_MS
    reads_cursors: bool = "read_cursor" not in SWITCHED_OFF
    share: float = 1.0

    @property
    def leader_within_us(self) -> int:
        """The bound of a healthy majority: 5 s, or five of the longest election timeouts."""
        return max(5_000_000, 5_000 * self.raft.election_timeout_ms[1])

    @property
    def settings(self) -> NodeSettings:
        """Initial state of every node."""
        limits = SimulatedLimits(idempotency_ms=self.idempotency_ms)
        return NodeSettings(raft=self.raft, storage=self.storage, driver=self.driver, limits=limits)


def draw_settings(plan: ClusterPlan, random: Random) -> NodeSettings:
    """Return other settings for one node of the plan: timeouts, limits, sizes; keys are kept as long."""
    chance, choice = random.random, random.choice
    scale = 0.6 + 0.9 * chance()
    shortest, longest = plan.raft.election_timeout_ms
    heartbeat_ms = plan.raft.heartbeat_interval_ms
    shortest = max(2 * heartbeat_ms, int(shortest * scale))
    raft = replace(
        plan.raft,
        election_timeout_ms=(shortest, max(shortest + heartbeat_ms, int(longest * scale))),
        # No leader's window is larger than a follower's queue: these links reorder, unlike connections of
        # peers, and each push that finds the queue full waits for a timeout.
        max_pending=choice([window for window in (1, 8, 1_000) if window <= plan.raft.max_waiting]),
        max_waiting=choice((plan.raft.max_waiting, 2 * plan.raft.max_waiting)),
        push_max_bytes=choice((KIB, 64 * KIB, 1024 * KIB)),
        max_push_timeout_ms=choice((300, 1_000, 3_000)),
        compare_timeout_ms=choice((500, 3_000)),
        fast_forward_timeout_ms=choice((300, 1_000)),
        read_index_timeout_ms=choice((300, 1_000)),
    )
    driver = replace(
        plan.driver,
        coalesce_max_bytes=choice((KIB, 4 * 1024 * KIB)),
        checkpoint_interval_ms=choice((500, 3_000, 10_000)),
        snapshot_interval_ms=choice((1_000, 5_000, 60_000)),
    )
    limits = SimulatedLimits(
        max_pending_requests=choice((2, 1_000)), idempotency_ms=int(plan.idempotency_ms * (1 + chance()))
    )
    storage = choice((SMALL_SEGMENTS, TINY_SEGMENTS, plan.storage))
    return NodeSettings(raft=raft, storage=storage, driver=driver, limits=limits)


def storm(nodes: int, durability: Durability = Durability.FSYNC) -> ClusterPlan:
    """Slow links, a slow disk, impatient members and a fault every moment: elections all the time."""
    return ClusterPlan(
        nodes=nodes,
        durability=durability,
        raft=STORM_TIMING,
        think_us=(1_000, 150_000),
        read_pause_us=(1_000, 30_000),
        links=STORM_LINKS,
        disk=STORM_DISK,
        faults=STORM_FAULTS,
        share=STORM_SHARE,
    )


def plan_of(seed: int) -> ClusterPlan:
    """Every seed has its own shape: nodes, durability, calm or storm, narrow windows, tiny segments."""
    durability = Durability.REPLICATED if seed % 7 == 5 else Durability.FSYNC  # 7: whatever the node count
    nodes = NODE_COUNTS[seed % len(NODE_COUNTS)]
    plan = storm(nodes, durability) if seed % 4 == 3 else ClusterPlan(nodes=nodes, durability=durability)
    random = Random(seed)
    if random.random() < 0.3:  # a narrow window and a small quota: D-04, D-08, D-09 at every turn
        raft = replace(
            plan.raft,
            max_pending=2,
            max_waiting=3,
            peer_push_throttle_point_bytes=1,
            peer_push_quota_bytes_per_s=32 * KIB,
            push_max_bytes=KIB,
        )
        plan = replace(plan, raft=raft)
    if nodes > 1 and random.random() < 0.35:
        plan = replace(plan, spares=1 if random.random() < 0.8 else 2)
    if random.random() < 0.2:
        plan = replace(plan, storage=TINY_SEGMENTS)
    if random.random() < 0.2 and plan.faults is not None:  # keys expire: clocks may jump less than that
        faults = replace(plan.faults, clock_jump_ms=SHORT_IDEMPOTENCY_MS // 8)
        plan = replace(plan, idempotency_ms=SHORT_IDEMPOTENCY_MS, faults=faults)
    return plan
