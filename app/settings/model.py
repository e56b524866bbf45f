"""What a node is told before it starts, as frozen dataclasses; settings_file.py reads them from a file."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from app.controller.config import ControllerConfig
from app.controller.metadata import LogSpec
from app.errors import ConfigError
from app.ha.config import HaConfig
from app.log.contract import Durability, LogOptions
from app.raft.config import RaftConfig
from storage.log.commitlog import CommitlogConfig

KIB = 1024
MIB = 1024 * KIB
DEFAULT_LOG = "default"
_KEYS_MAX, _PRODUCERS_MAX = 40_000_000, 1_000_000  # the snapshot of a log's state stays below 4 GiB
LOG_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")


def check(holds: bool, complaint: str) -> None:
    """Raise ConfigError(complaint) unless `holds`."""
    if not holds:
        raise ConfigError(complaint)


class Replication(StrEnum):
    """How a log is replicated (docs/api.md §5)."""

    RAFT = "raft"
    CONTROLLER = "controller"  # a master that the controllers elect, and its SyncStateSet
    CLASSIC = "classic"  # a master for ever, the first replica, and its slaves


class AppendFront(StrEnum):
    """Which door takes appends: the plain ASGI one, or the FastAPI route that is its reference."""

    ASGI = "asgi"
    FASTAPI = "fastapi"


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """One node of the cluster.

    listen, peer_listen, ha_listen: host:port to bind; url, peer_address, ha_address: how others reach it.
    ha_listen may have port 0: any free one; ha_address None: what was bound.
    """

    id: str
    listen: str
    url: str
    peer_listen: str
    peer_address: str
    data: Path
    ha_listen: str = "127.0.0.1:0"
    ha_address: str | None = None


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """One log. replicas: ids of the nodes that keep it, in the order of the configuration; the rest as
    app/controller/metadata.py says (LogSpec).

    Classic mode: the first replica is the master. sync_slaves: how many slaves a synchronous append waits for
    (H-07; RocketMQ: inSyncReplicas - 1), at least min_in_sync_replicas - 1. auto_in_sync_replicas (RocketMQ:
    enableAutoInSyncReplicas): it waits only for the slaves in sync when they are fewer, but never for fewer
    than min_in_sync_replicas - 1. With fewer replicas in sync than min_in_sync_replicas (RocketMQ:
    minInSyncReplicas) synchronous appends are refused. unclean: a new master takes over without hearing the
    other replicas (app/ha/classic/opening.py). ha_listen, ha_address: of a listener for this log alone at
    its master, where slaves need no preface; None: the node's HA listener takes them.
    """

    name: str
    replication: Replication
    durability: Durability
    replicas: tuple[str, ...]
    learners: tuple[str, ...] = ()
    min_in_sync_replicas: int = 1
    unclean: bool = False
    preferred: str | None = None
    retention: Mapping[str, Any] | None = None  # {"ms", "bytes"}, null: for ever; None: as [retention] says
    sync_slaves: int = 1
    auto_in_sync_replicas: bool = False
    ha_listen: str | None = None
    ha_address: str | None = None

    @property
    def spec(self) -> LogSpec:
        """The same as the controllers keep it."""
        return LogSpec(
            replication=self.replication.value,
            replicas=self.replicas,
            durability=self.durability.value,
            retention=None if self.retention is None else dict(self.retention),
            min_in_sync_replicas=self.min_in_sync_replicas,
            learners=self.learners,
            unclean=self.unclean,
            preferred=self.preferred,
        )

    @property
    def options(self) -> LogOptions:
        """What an open replica takes up while it runs."""
        return LogOptions(
            durability=self.durability,
            min_in_sync_replicas=self.min_in_sync_replicas,
            preferred=self.preferred,
        )

    def changed_by(self, spec: LogSpec) -> "LogSettings":
        """The settings with those of the spec that may change while the log exists (CHANGEABLE).

        Raises ValueError for a durability that this version does not know.
        """
        return replace(
            self,
            durability=Durability(spec.durability),
            min_in_sync_replicas=spec.min_in_sync_replicas,
            unclean=spec.unclean,
            preferred=spec.preferred,
            retention=spec.retention,
        )

    @classmethod
    def of_spec(cls, name: str, spec: LogSpec) -> "LogSettings":
        """Invert `spec`. Raises ValueError for a mode or durability that this version does not know."""
        return cls(
            name=name,
            replication=Replication(spec.replication),
            durability=Durability(spec.durability),
            replicas=spec.replicas,
            learners=spec.learners,
            min_in_sync_replicas=spec.min_in_sync_replicas,
            unclean=spec.unclean,
            preferred=spec.preferred,
            retention=spec.retention,
            sync_slaves=min(1, len(spec.replicas) - 1),
        )


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a client may ask for (docs/api.md §3, shown at /v1/cluster), and what waits at a leader at
    most."""

    max_record_bytes: int = MIB  # value + key + headers
    max_request_bytes: int = 16 * MIB  # unpacked
    max_request_records: int = 10_000
    max_pending_requests: int = 10_000  # appends that wait for their acknowledgement, a log (D-29)
    max_pending_bytes: int = 256 * MIB  # of those
    idempotency_ms: int = 24 * 60 * 60 * 1000
    max_idempotency_keys: int = 2_000_000  # a log, at about 80 bytes; a new key beyond it: 429
    max_producers: int = 100_000  # a log, at about 500 bytes; a new producer beyond it: 429
    max_cursors: int = 10_000  # a log; a new cursor beyond it: 429

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check(value > 0, f"{name} must be positive, got {value}")
        for name, most in (
            ("max_idempotency_keys", _KEYS_MAX),
            ("max_producers", _PRODUCERS_MAX),
            ("max_record_bytes", self.max_request_bytes),
        ):
            check(getattr(self, name) <= most, f"{name} must be at most {most}, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class RetentionConfig:
    """Default retention for logs without their own. None keeps everything.

    Records from a fencing cursor on are always kept.
    """

    ms: int | None = None  # since the record's timestamp
    bytes: int | None = None  # as stored
    check_interval_ms: int = 30_000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check(value is None or value > 0, f"{name} must be positive, got {value}")


@dataclass(frozen=True, kw_only=True)
class JournalConfig:
    """Retention of a node's journal of each log. None keeps everything.

    The newest 1 000 events are always kept. segment_max_bytes: retention removes whole segments.
    """

    retention_ms: int | None = 7 * 24 * 60 * 60 * 1000
    retention_bytes: int | None = 64 * MIB
    segment_max_bytes: int = 4 * MIB

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check(value is None or value > 0, f"{name} must be positive, got {value}")


@dataclass(frozen=True, kw_only=True)
class DiskConfig:
    """threads: concurrent disk calls, all logs together. The calls of one log keep their order.

    reserve_bytes: disk space reserved for operation on a full disk (app/node/reserve.py); 0: none.
    """

    threads: int = 16
    reserve_bytes: int = 16 * MIB

    def __post_init__(self) -> None:
        check(0 < self.threads <= 256, f"threads must be between 1 and 256, got {self.threads}")
        check(self.reserve_bytes >= 0, f"reserve_bytes must not be negative, got {self.reserve_bytes}")


@dataclass(frozen=True, kw_only=True)
class ScrubConfig:
    """Background scrub. It rereads every batch to detect damage while intact copies exist."""

    enabled: bool = True
    bytes_per_s: int = 8 * MIB
    interval_ms: int = 24 * 60 * 60 * 1000  # from the end of one to the beginning of the next
    start_delay_ms: int = 60_000

    def __post_init__(self) -> None:
        for name in ("bytes_per_s", "interval_ms", "start_delay_ms"):
            check(getattr(self, name) > 0, f"{name} must be positive, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class HttpSettings:
    """HTTP limits and timeouts of one node. Beyond max_open_* the response is 429."""

    append_front: AppendFront = AppendFront.ASGI
    max_open_appends: int = 16_384
    max_open_reads: int = 4_096  # long polls and event streams among them
    max_open_bytes: int = 256 * MIB
    leader_wait_ms: int = 3_000  # how long a request waits for a leader to be elected, or to be confirmed
    body_timeout_ms: int = 60_000  # within which the body of an append must have come
    sse_ping_ms: int = 10_000
    shutdown_grace_ms: int = 3_000

    def __post_init__(self) -> None:
        for name in (
            "max_open_appends",
            "max_open_reads",
            "max_open_bytes",
            "leader_wait_ms",
            "body_timeout_ms",
        ):
            check(getattr(self, name) > 0, f"{name} must be positive, got {getattr(self, name)}")
        check(self.sse_ping_ms <= 15_000, f"sse_ping_ms must be at most 15000, got {self.sse_ping_ms}")


@dataclass(frozen=True, kw_only=True)
class SecuritySettings:
    """tokens_file: one `TOKEN [read|write]` a line. tls_*: PEM files of the REST listener."""

    tokens_file: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None  # to trust when forwarding to other nodes
    allow_insecure: bool = False

    def __post_init__(self) -> None:
        check(
            (self.tls_certificate is None) == (self.tls_key is None),
            "tls_certificate and tls_key must be set together",
        )


@dataclass(frozen=True, kw_only=True)
class TablesSettings:
    """path: folder or URL of the Delta tables, one folder per log; None: no tables."""

    path: str | None = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything one node needs to know before it starts."""

    cluster_id: str
    node: NodeSettings
    nodes: tuple[NodeSettings, ...]
    logs: tuple[LogSettings, ...]
    controller: ControllerConfig = field(default_factory=ControllerConfig)
    ha: HaConfig = field(default_factory=HaConfig)
    raft: RaftConfig = field(default_factory=RaftConfig)
    storage: CommitlogConfig = field(default_factory=CommitlogConfig)
    disk: DiskConfig = field(default_factory=DiskConfig)
    journal: JournalConfig = field(default_factory=JournalConfig)
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    scrub: ScrubConfig = field(default_factory=ScrubConfig)
    limits: Limits = field(default_factory=Limits)
    http: HttpSettings = field(default_factory=HttpSettings)
    security: SecuritySettings = field(default_factory=SecuritySettings)
    tables: TablesSettings = field(default_factory=TablesSettings)

    def node_of(self, node_id: str | None) -> NodeSettings | None:
        """Return the node with this id; None for None and for an unknown id."""
        return next((node for node in self.nodes if node.id == node_id), None)

    def slaves_connect_to(self, log: LogSettings) -> str | None:
        """Return the HA address of a classic log's master; None if only the master knows it."""
        master = self.node_of(log.replicas[0])
        return log.ha_address or (None if master is None else master.ha_address)

    @property
    def controllers(self) -> tuple[str, ...]:
        """The nodes that vote in `__controller`."""
        return self.controller.nodes or tuple(node.id for node in self.nodes)

    @property
    def brokers(self) -> tuple[str, ...]:
        """The nodes that keep logs: all but controllers on processes of their own."""
        return brokers_of(self.controller, [node.id for node in self.nodes])


def brokers_of(controller: ControllerConfig, node_ids: Sequence[str]) -> tuple[str, ...]:
    """The nodes that keep logs; all of them when every one is named as a controller."""
    others = tuple(node for node in node_ids if node not in controller.nodes)
    return others or tuple(node_ids)
