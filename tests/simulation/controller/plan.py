"""Groups by seed: two or three replicas, embedded controllers or three separate ones."""

from dataclasses import dataclass, replace

from app.controller.config import ControllerConfig
from app.controller.metadata import LogSpec
from app.ha.config import HaConfig
from app.log.contract import Durability, LogOptions
from app.log.driver_interfaces import DriverConfig
from app.raft.config import RaftConfig
from storage.log.commitlog import CommitlogConfig
from tests.simulation.world.network import LinkFaults

LOG_NAME = "default"
GENERATION = -1  # of a log of the configuration
# About five times as fast as the defaults, in the same proportions: more happens in a simulated second.
CONTROLLERS = ControllerConfig(
    heartbeat_interval_ms=100,
    broker_timeout_ms=400,
    lease_ms=300,
    retry_interval_ms=30,
    scan_interval_ms=20,
    election_timeout_ms=(80, 160),
    trim_after_records=60,
)
RAFT = RaftConfig(
    tick_interval_ms=20,
    election_timeout_ms=(80, 160),
    heartbeat_interval_ms=25,
    max_push_timeout_ms=100,
    compare_timeout_ms=200,
    read_index_timeout_ms=150,
)
HA = HaConfig(
    ha_send_heartbeat_interval_ms=60,
    ha_housekeeping_interval_ms=400,
    ha_max_time_slave_not_catchup_ms=400,
    ha_reconnect_interval_ms=60,
    ha_handshake_timeout_ms=400,
    ha_transfer_batch_size=1024,
    ha_window_bytes=4096,
)
STORAGE = CommitlogConfig(segment_max_bytes=16 * 1024, mark_interval_bytes=8 * 1024)
DRIVER = DriverConfig(snapshot_interval_ms=2_000, checkpoint_interval_ms=300)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How fast a group lives. tick_us: of a node's timer. pause_us: between two faults; lasting_us: of one.

    think_us: pause of a client. read_pause_us: pause of the one that only reads. master_within_us: the bound
    of liveness.
    """

    controllers: ControllerConfig = CONTROLLERS
    raft: RaftConfig = RAFT
    ha: HaConfig = HA
    driver: DriverConfig = DRIVER
    tick_us: int = 20_000
    pause_us: tuple[int, int] = (50_000, 900_000)
    lasting_us: tuple[int, int] = (20_000, 1_200_000)
    long_us: tuple[int, int] = (10_000_000, 15_000_000)
    think_us: tuple[int, int] = (1_000, 60_000)
    read_pause_us: tuple[int, int] = (10_000, 200_000)
    master_within_us: int = 5_000_000


FAST = Timing()
# The defaults of the product, but for frames, windows and the log of the controllers, which are small.
USUAL = Timing(
    controllers=ControllerConfig(trim_after_records=60),
    raft=RaftConfig(  # simulated links lose single messages, for which connections of peers would not wait
        tick_interval_ms=100,
        heartbeat_interval_ms=100,
        election_timeout_ms=(300, 600),
        max_push_timeout_ms=300,
        compare_timeout_ms=400,
    ),
    ha=HaConfig(ha_transfer_batch_size=1024, ha_window_bytes=4096),
    driver=DriverConfig(snapshot_interval_ms=5_000, checkpoint_interval_ms=1_500),
    tick_us=100_000,
    pause_us=(200_000, 4_000_000),
    lasting_us=(100_000, 6_000_000),
    think_us=(5_000, 700_000),
    read_pause_us=(50_000, 1_500_000),
)
QUIET_LINKS = LinkFaults(loss=0.01, duplication=0.01, holding=0.01)
STORMY_LINKS = LinkFaults(max_delay_us=15_000, loss=0.08, duplication=0.1, holding=0.05)


@dataclass(frozen=True, kw_only=True)
class HaPlan:
    """brokers: how many nodes keep the log. own_controllers: three nodes that keep nothing else; otherwise
    the brokers, and with two of them one node more, are the controllers. unclean: elections of that kind are
    allowed. in_sync: how many members of the set must hold an append; None: all."""

    brokers: int = 3
    min_in_sync: int = 1
    in_sync: int | None = None
    unclean: bool = False
    own_controllers: bool = False
    learner: bool = False
    durability: Durability = Durability.FSYNC
    links: LinkFaults = QUIET_LINKS
    faults: bool = True
    operates: bool = True  # disks are replaced, settings changed, logs trimmed, controllers rebuilt
    clients: int = 3
    timing: Timing = FAST

    @property
    def broker_names(self) -> tuple[str, ...]:
        return tuple(f"n{number + 1}" for number in range(self.brokers))

    @property
    def controller_names(self) -> tuple[str, ...]:
        return ("c1", "c2", "c3") if self.own_controllers else ("n1", "n2", "n3")

    @property
    def names(self) -> tuple[str, ...]:
        """All nodes."""
        return tuple(dict.fromkeys((*self.broker_names, *self.controller_names)))

    @property
    def options(self) -> LogOptions:
        return LogOptions(
            durability=self.durability,
            min_in_sync_replicas=self.min_in_sync,
            in_sync_replicas=self.in_sync or 0,
        )

    @property
    def spec(self) -> LogSpec:
        return LogSpec(
            replication="controller",
            replicas=self.broker_names,
            durability=self.durability.value,
            min_in_sync_replicas=self.min_in_sync,
            in_sync_replicas=self.in_sync,
            learners=self.broker_names[-1:] if self.learner else (),
            unclean=self.unclean,
        )


def plan_with_acks(seed: int) -> HaPlan:
    """Three to five brokers of which two or three acknowledge: fewer than all, and not always a majority."""
    brokers = 3 + seed % 3
    return HaPlan(
        brokers=brokers,
        in_sync=3 if brokers == 5 and seed % 2 else 2,
        min_in_sync=2 if seed % 4 == 1 else 1,
        own_controllers=seed % 5 == 2,
        learner=seed % 7 == 3 and brokers > 3,
        durability=Durability.REPLICATED if seed % 6 == 4 else Durability.FSYNC,
        links=STORMY_LINKS if seed % 3 == 1 else QUIET_LINKS,
    )


def plan_of(seed: int) -> HaPlan:
    """Every shape comes up; the shapes of neighbouring seeds differ."""
    brokers = 2 + seed % 2
    learner = seed % 11 == 5 and brokers == 3
    return HaPlan(
        brokers=brokers,
        min_in_sync=2 if seed % 5 == 3 and not learner else 1,
        unclean=seed % 7 == 4,
        own_controllers=seed % 3 == 2,
        in_sync=2 if seed % 8 == 7 and not learner else None,
        learner=learner,
        durability=Durability.REPLICATED if seed % 9 == 7 else Durability.FSYNC,
        links=STORMY_LINKS if seed % 3 == 1 else QUIET_LINKS,
        timing=USUAL if seed % 4 == 1 else FAST,
    )


def long_plan_of(seed: int) -> HaPlan:
    """As plan_of, at the times of the defaults: many hours at the price of few events an hour."""
    return replace(plan_of(seed), timing=USUAL)
