"""Settings of a node as frozen dataclasses; app/settings/file.py reads them from a file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from app.controller.config import ControllerConfig
from app.controller.metadata import LogSpec
from app.errors import check
from app.ha.config import HaConfig
from app.log.contract import Durability, LogOptions
from app.raft.config import RaftConfig
from app.settings.addresses import is_http_url
from storage.log.commitlog import CommitlogConfig
from storage.units import KIB, MIB

DEFAULT_LOG = "default"
_KEYS_MAX, _PRODUCERS_MAX = 40_000_000, 1_000_000  # the snapshot of a log's state stays below 4 GiB


class Replication(StrEnum):
    """Replication mode of a log (docs/api.md §5)."""

    RAFT = "raft"
    CONTROLLER = "controller"  # a master elected by the controllers, and its SyncStateSet
    CLASSIC = "classic"  # a fixed master, the first replica, and its slaves


class AppendFront(StrEnum):
    """Reader of appends and long polls: the lanes before ASGI for all that they take, or FastAPI for all."""

    LANE = "lane"
    FASTAPI = "fastapi"

    @classmethod
    def _missing_(cls, value: object) -> "AppendFront | None":
        return cls.LANE if value == "asgi" else None  # its name in configurations of earlier versions


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
    in LogSpec (app/controller/metadata.py).

    Classic mode: the first replica is the master. sync_slaves: how many slaves a synchronous append waits for
    (H-07; RocketMQ: inSyncReplicas - 1), at least min_in_sync_replicas - 1. auto_in_sync_replicas (RocketMQ:
    enableAutoInSyncReplicas): it waits only for the slaves in sync when they are fewer, but never for fewer
    than min_in_sync_replicas - 1. With fewer replicas in sync than min_in_sync_replicas (RocketMQ:
    minInSyncReplicas) synchronous appends are refused. unclean: a new master takes over without hearing the
    other replicas (app/ha/classic/opening.py). raised_from: as in Log, by the metadata; 1 while those known
    here may be outdated. ha_listen, ha_address: of a listener for this log alone at its master, where slaves
    need no preface; None: the node's HA listener takes them.
    """

    name: str
    replication: Replication
    durability: Durability
    replicas: tuple[str, ...]
    learners: tuple[str, ...] = ()
    min_in_sync_replicas: int = 1
    unclean: bool = False
    preferred: str | None = None
    priorities: Mapping[str, int] = field(default_factory=dict)
    in_sync_replicas: int | None = None
    retention: Mapping[str, Any] | None = None  # {"ms", "bytes"}, null: no limit; None: as [retention]
    sync_slaves: int = 1
    auto_in_sync_replicas: bool = False
    raised_from: int = 1
    ha_listen: str | None = None
    ha_address: str | None = None

    @property
    def spec(self) -> LogSpec:
        """The settings of the log as the controllers store them."""
        return LogSpec(
            replication=self.replication.value,
            replicas=self.replicas,
            durability=self.durability.value,
            retention=None if self.retention is None else dict(self.retention),
            min_in_sync_replicas=self.min_in_sync_replicas,
            learners=self.learners,
            unclean=self.unclean,
            preferred=self.preferred,
            priorities=dict(self.priorities),
            in_sync_replicas=self.in_sync_replicas,
        )

    @property
    def options(self) -> LogOptions:
        """Settings of an open replica."""
        return LogOptions(
            durability=self.durability,
            min_in_sync_replicas=self.min_in_sync_replicas,
            preferred=self.preferred,
            in_sync_replicas=self.in_sync_replicas or 0,
            unclean=self.unclean,
            raised_from=self.raised_from if self.replication is Replication.CLASSIC else 0,
        )

    @property
    def ignored(self) -> tuple[str, ...]:
        """Keys that have a value, without effect in the mode of this log."""
        if self.replication is not Replication.CLASSIC:
            return ()
        return tuple(key for key in ("learners", "preferred") if getattr(self, key))

    def changed_by(self, spec: LogSpec, raised_from: int) -> "LogSettings":
        """Return the settings, with those of the spec that may change while the log exists (CHANGEABLE).

        Raises ValueError for a durability that this version does not know.
        """
        fixed = self.replication is Replication.CLASSIC
        return replace(
            self,
            replicas=self.replicas if fixed else spec.replicas,
            learners=self.learners if fixed else spec.learners,
            durability=Durability(spec.durability),
            min_in_sync_replicas=spec.min_in_sync_replicas,
            unclean=spec.unclean,
            preferred=spec.preferred,
            priorities=spec.priorities,
            in_sync_replicas=spec.in_sync_replicas,
            retention=spec.retention,
            raised_from=raised_from,
        )

    @classmethod
    def of_spec(cls, name: str, spec: LogSpec, raised_from: int = 1) -> "LogSettings":
        """Invert `spec`. Raises ValueError for a mode or durability that this version does not know."""
        return cls(
            name=name,
            replication=Replication(spec.replication),
            durability=Durability(spec.durability),
            replicas=spec.replicas,
            learners=spec.learners,
            sync_slaves=min(1, len(spec.replicas) - 1),
        ).changed_by(spec, raised_from)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of requests and of a log's memory (docs/api.md §3); those of clients are shown at
    /v1/cluster."""

    max_record_bytes: int = MIB
    """Largest record: value, key and headers together."""
    max_record_headers: int = 10_000
    """Headers of one record."""
    max_request_bytes: int = 16 * MIB
    """Largest body of an append after decompression. In the log its records have at most 63 MiB."""
    max_request_records: int = 10_000
    """Records in one append."""
    max_pending_requests: int = 10_000
    """Appends of one log that wait for their acknowledgement at the leader; more are refused (D-29)."""
    max_pending_bytes: int = 256 * MIB
    """Bytes of the appends that wait for their acknowledgement, for each log (D-29)."""
    idempotency_ms: int = 24 * 60 * 60 * 1000
    """Running time for which an idempotency key or a silent producer is remembered."""
    max_idempotency_keys: int = 2_000_000
    """Idempotency keys of one log, about 80 bytes each; a new key beyond it is refused with 429."""
    max_producers: int = 100_000
    """Producers of one log, about 500 bytes each; a new producer beyond it is refused with 429."""
    max_cursors: int = 10_000
    """Cursors of one log; a new cursor beyond it is refused with 429."""

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
    """Default retention for logs without their own. Retention never removes what a cursor with a fence
    still needs."""

    ms: int | None = None
    """Age by its timestamp after which a record is removed; absent: never."""
    bytes: int | None = None
    """Stored size of a log above which its oldest records are removed; absent: unlimited."""
    check_interval_ms: int = 30_000
    """Interval at which a leader checks the retention of its logs."""

    def __post_init__(self) -> None:
        _check_positive(self)


@dataclass(frozen=True, kw_only=True)
class JournalConfig:
    """Retention of a node's journal of each log. The newest 1 000 events are always kept."""

    retention_ms: int | None = 7 * 24 * 60 * 60 * 1000
    """Age after which an event is removed."""
    retention_bytes: int | None = 64 * MIB
    """Size of a log's journal above which its oldest events are removed."""
    segment_max_bytes: int = 4 * MIB
    """Size of a journal segment, at most that of `[storage]`; disk space is freed by whole segments."""

    def __post_init__(self) -> None:
        _check_positive(self)


def _check_positive(config: RetentionConfig | JournalConfig) -> None:
    """Raise ConfigError for a number that is not positive; absent ones are allowed."""
    for name, value in vars(config).items():
        check(value is None or value > 0, f"{name} must be positive, got {value}")


@dataclass(frozen=True, kw_only=True)
class DiskConfig:
    """Disk threads of a node, and the space that it holds back."""

    threads: int = 16
    """Disk calls in progress at once for all logs, from 1 to 256; the calls of one log keep their order."""
    reserve_bytes: int = 16 * MIB
    """Space held back for trims, votes and checkpoints when the disk is full, at most a sixteenth of it;
    0: none."""

    def __post_init__(self) -> None:
        check(0 < self.threads <= 256, f"threads must be between 1 and 256, got {self.threads}")
        check(self.reserve_bytes >= 0, f"reserve_bytes must not be negative, got {self.reserve_bytes}")


@dataclass(frozen=True, kw_only=True)
class ScrubConfig:
    """Background scrub: reads every batch again to find damage while intact copies exist."""

    enabled: bool = True
    """Run the background scrub."""
    bytes_per_s: int = 8 * MIB
    """Rate at which the scrub reads."""
    interval_ms: int = 24 * 60 * 60 * 1000
    """Pause from the end of one scrub to the start of the next."""
    start_delay_ms: int = 60_000
    """Delay of the first scrub after the node's start."""

    def __post_init__(self) -> None:
        for name in ("bytes_per_s", "interval_ms", "start_delay_ms"):
            check(getattr(self, name) > 0, f"{name} must be positive, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class HttpSettings:
    """REST listener. Requests beyond a limit of this node are refused with 429."""

    append_front: AppendFront = AppendFront.LANE
    """Reader of appends and long polls: `lane` (fast), or `fastapi` for all of them (same answers), as while
    `[tracing]` has an endpoint."""
    max_open_appends: int = 16_384
    """Appends in progress at this node."""
    max_open_reads: int = 4_096
    """Reads in progress at this node, long polls and event streams included."""
    max_open_bytes: int = 256 * MIB
    """Bytes of append bodies in memory at this node; as much again for responses to reads. One of them alone
    may be larger."""
    leader_wait_ms: int = 3_000
    """Time that a request waits for a leader to be elected or confirmed."""
    body_timeout_ms: int = 60_000
    """Time within which the body of an append must arrive, and longest pause within any body."""
    head_timeout_ms: int = 10_000
    """Time within which a request line and its headers must arrive."""
    max_head_bytes: int = 64 * KIB
    """Size of a request line and its headers, at least 1 KiB. The request target may have at most 65,535
    bytes."""
    idle_timeout_ms: int = 75_000
    """Time that a connection without a request stays open."""
    write_timeout_ms: int = 60_000
    """Time for which a client may read nothing of its response."""
    max_connections: int = 4_096
    """Open connections; at most a quarter of the file descriptors that the process may have."""
    sse_ping_ms: int = 10_000
    """Interval of `ping` events on an event stream, at most 15 000."""
    shutdown_grace_ms: int = 3_000
    """Time that a stopping node gives requests in progress; 0: none."""

    def __post_init__(self) -> None:
        for name in (
            "max_open_appends",
            "max_open_reads",
            "max_open_bytes",
            "leader_wait_ms",
            "body_timeout_ms",
            "head_timeout_ms",
            "idle_timeout_ms",
            "write_timeout_ms",
            "max_connections",
        ):
            check(getattr(self, name) > 0, f"{name} must be positive, got {getattr(self, name)}")
        grace_ms = self.shutdown_grace_ms
        check(grace_ms >= 0, f"shutdown_grace_ms must not be negative, got {grace_ms}")
        check(self.max_head_bytes >= KIB, f"max_head_bytes must be at least {KIB}, got {self.max_head_bytes}")
        check(1 <= self.sse_ping_ms <= 15_000, f"sse_ping_ms must be from 1 to 15000, got {self.sse_ping_ms}")


@dataclass(frozen=True, kw_only=True)
class SecuritySettings:
    """Tokens and TLS of the REST listener; secret or TLS between nodes. Certificates are PEM files."""

    tokens_file: Path | None = None
    """File with the hash of one token a line, made by `commitlog token new`; read again when it changes.
    Absent: no authentication."""
    audit: bool | None = None
    """Write administration to the log `__audit`; absent: if there is a tokens file."""
    audit_retention_ms: int = 90 * 24 * 60 * 60 * 1000
    """Retention of `__audit` when it is created; `PATCH /v1/logs/__audit` changes it."""
    tls_certificate: Path | None = None
    """Certificate of the REST listener; requires `tls_key`."""
    tls_key: Path | None = None
    """Private key of the REST listener."""
    tls_ca: Path | None = None
    """Authority that this node trusts when it forwards requests to other nodes."""
    cluster_secret_file: Path | None = None
    """File with the secret that nodes prove to each other at the peer and HA ports, at least 16 bytes; the
    secret in a second line is accepted too."""
    cluster_secret_optional: bool = False
    """Accept nodes without the secret as well, while it is introduced in a running cluster."""
    peer_tls_certificate: Path | None = None
    """Certificate of this node at the peer and HA ports, as server and as client; it names the node's id, or
    the host of its `peer_address`."""
    peer_tls_key: Path | None = None
    """Private key of the certificate for other nodes."""
    peer_tls_ca: Path | None = None
    """Authority of the certificates of all nodes; TLS replaces the cluster secret."""
    allow_insecure: bool = False
    """Allow every listener beyond loopback without protection."""
    allow_insecure_rest: bool = False
    """Allow the REST listener beyond loopback without TLS and tokens."""
    allow_insecure_peers: bool = False
    """Allow the peer listener beyond loopback without a cluster secret or TLS."""
    allow_insecure_ha: bool = False
    """Allow HA listeners beyond loopback without a cluster secret or TLS."""

    @property
    def protects_nodes(self) -> bool:
        """True if nodes must prove themselves to each other."""
        return self.peer_tls_ca is not None or (
            self.cluster_secret_file is not None and not self.cluster_secret_optional
        )

    def __post_init__(self) -> None:
        check(
            self.audit_retention_ms > 0, f"audit_retention_ms must be positive, got {self.audit_retention_ms}"
        )
        check(
            (self.tls_certificate is None) == (self.tls_key is None),
            "tls_certificate and tls_key must be set together",
        )
        peer_tls = {self.peer_tls_certificate is None, self.peer_tls_key is None, self.peer_tls_ca is None}
        check(
            len(peer_tls) == 1,
            "peer_tls_certificate, peer_tls_key and peer_tls_ca must be set together",
        )
        check(
            self.cluster_secret_file is None or self.peer_tls_ca is None,
            "cluster_secret_file and peer_tls_ca must not be set together: TLS replaces the secret",
        )
        check(
            self.cluster_secret_file is not None or not self.cluster_secret_optional,
            "cluster_secret_optional requires cluster_secret_file",
        )


@dataclass(frozen=True, kw_only=True)
class TablesSettings:
    """Delta tables that this node reports on."""

    path: str | None = None
    """Folder or URL of the Delta tables, with one folder for each log; absent: none."""


class LogFormat(StrEnum):
    """Notation of the node's own log lines."""

    LOGFMT = "logfmt"
    JSON = "json"


class LogLevel(StrEnum):
    """Least severity of the node's own log lines."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True)
class LoggingSettings:
    """Lines that the node writes to its standard error."""

    format: LogFormat = LogFormat.LOGFMT
    """`logfmt` (`key=value`), or `json` (one object a line)."""
    level: LogLevel = LogLevel.INFO
    """Least severity: `debug`, `info`, `warning` or `error`."""


@dataclass(frozen=True, kw_only=True)
class TracingSettings:
    """Traces of calls, in the notation of OpenTelemetry."""

    endpoint: str | None = None
    """Base URL of a collector for OTLP over HTTP, such as `http://127.0.0.1:4318`; absent: no traces."""
    sample_percent: int = 100
    """Part of the traces that begin at this node; a trace that a client began follows its `traceparent`."""

    def __post_init__(self) -> None:
        check(
            self.endpoint is None or is_http_url(self.endpoint),
            f"endpoint must be an http or https URL with a host, got {self.endpoint}",
        )
        check(
            0 <= self.sample_percent <= 100,
            f"sample_percent must be from 0 to 100, got {self.sample_percent}",
        )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of one node."""

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
    logging: LoggingSettings = field(default_factory=LoggingSettings)
    tracing: TracingSettings = field(default_factory=TracingSettings)

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
