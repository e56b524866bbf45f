"""conf/*.toml -> the frozen configs. This module alone reads configuration files; unknown keys are refused.

    [cluster] id                                     names the cluster; a node of another cluster is refused
    [[nodes]] id, listen, url, peer_listen, peer_address, data     (url, peer_address: the listeners)
              ha_listen, ha_address                  for logs in controller and classic mode
    [[logs]]  name, replication, durability, replicas              (`default` exists without being named)
              retention_ms, retention_bytes                        (absent: those of [retention])
              learners, min_in_sync_replicas, unclean, preferred   (controller mode)
              master, sync_slaves, ha_listen, ha_address           (classic mode)
    [controller] [ha] [raft] [storage] [retention] [scrub] [limits] [http] [security] [tables]
                                                           fields of the dataclasses so named

A relative `data` folder is relative to the folder that the node is started in.
"""

import ipaddress
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model

from app.controller.commands import Refused
from app.controller.config import ControllerConfig
from app.controller.metadata import LogSpec
from app.controller.settings_of_logs import check_spec
from app.errors import ConfigError
from app.ha.config import HaConfig
from app.raft.config import RaftConfig
from app.replication import Durability
from storage.commitlog import CommitlogConfig

KIB = 1024
MIB = 1024 * KIB
DEFAULT_LOG = "default"
LOG_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")


def check(holds: bool, complaint: str) -> None:
    """Raise ConfigError(complaint) unless `holds`."""
    if not holds:
        raise ConfigError(complaint)


class Replication(StrEnum):
    """How a log is replicated (API.md §5)."""

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
    (H-07). ha_listen, ha_address: of a listener for this log alone at its master, where slaves need no
    preface; None: the node's HA listener takes them.
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
    """What a client may ask for (API.md §3, shown at /v1/cluster), and what waits at a leader at most."""

    max_record_bytes: int = MIB  # value + key + headers
    max_request_bytes: int = 16 * MIB  # unpacked
    max_request_records: int = 10_000
    max_pending_requests: int = 10_000  # appends that wait for their acknowledgement, a log (D-29)
    max_pending_bytes: int = 256 * MIB  # of those
    idempotency_ms: int = 24 * 60 * 60 * 1000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check(value > 0, f"{name} must be positive")
        check(self.max_record_bytes <= self.max_request_bytes, "max_record_bytes is past max_request_bytes")


@dataclass(frozen=True, kw_only=True)
class RetentionConfig:
    """How long and how much a log keeps that does not say so itself; None: for ever. Never past a fence."""

    ms: int | None = None  # since the record's timestamp
    bytes: int | None = None  # as stored
    check_interval_ms: int = 30_000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check(value is None or value > 0, f"{name} must be positive")


@dataclass(frozen=True, kw_only=True)
class ScrubConfig:
    """The background scrub, which reads every batch again to find old damage while there are good copies."""

    enabled: bool = True
    bytes_per_s: int = 8 * MIB
    interval_ms: int = 24 * 60 * 60 * 1000  # from the end of one to the beginning of the next
    start_delay_ms: int = 60_000

    def __post_init__(self) -> None:
        for name in ("bytes_per_s", "interval_ms", "start_delay_ms"):
            check(getattr(self, name) > 0, f"{name} must be positive")


@dataclass(frozen=True, kw_only=True)
class HttpSettings:
    """The front door. What is open counts at one node; past it: 429."""

    append_front: AppendFront = AppendFront.ASGI
    max_open_appends: int = 16_384
    max_open_reads: int = 4_096  # long polls and event streams among them
    max_open_bytes: int = 256 * MIB
    leader_wait_ms: int = 3_000  # how long a request waits for a leader to be elected, or to be confirmed
    body_timeout_ms: int = 60_000  # within which the body of an append must have come
    sse_ping_ms: int = 10_000
    shutdown_grace_ms: int = 3_000
    access_log: bool = False

    def __post_init__(self) -> None:
        for name in (
            "max_open_appends",
            "max_open_reads",
            "max_open_bytes",
            "leader_wait_ms",
            "body_timeout_ms",
        ):
            check(getattr(self, name) > 0, f"{name} must be positive")
        check(self.sse_ping_ms <= 15_000, "sse_ping_ms must be at most 15 000")


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
            "tls_certificate and tls_key belong together",
        )


@dataclass(frozen=True, kw_only=True)
class TablesSettings:
    """path: folder or URL of the Delta tables, one folder a log; None: the service knows of none."""

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
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    scrub: ScrubConfig = field(default_factory=ScrubConfig)
    limits: Limits = field(default_factory=Limits)
    http: HttpSettings = field(default_factory=HttpSettings)
    security: SecuritySettings = field(default_factory=SecuritySettings)
    tables: TablesSettings = field(default_factory=TablesSettings)

    def node_of(self, node_id: str | None) -> NodeSettings | None:
        """The node of that id; None for None and strangers."""
        return next((node for node in self.nodes if node.id == node_id), None)

    def slaves_connect_to(self, log: LogSettings) -> str | None:
        """Where the master of a classic log takes slaves; None when only the master itself can say."""
        master = self.node_of(log.replicas[0])
        return log.ha_address or (None if master is None else master.ha_address)

    @property
    def controllers(self) -> tuple[str, ...]:
        """The nodes that vote in `__controller`."""
        return self.controller.nodes or tuple(node.id for node in self.nodes)

    @property
    def brokers(self) -> tuple[str, ...]:
        """The nodes that keep logs: all but controllers on processes of their own."""
        return _brokers(self.controller, [node.id for node in self.nodes])


def _brokers(controller: ControllerConfig, node_ids: Sequence[str]) -> tuple[str, ...]:
    others = tuple(node for node in node_ids if node not in controller.nodes)
    return others or tuple(node_ids)


# --- the edge: one pydantic model of the file -----------------------------------------------------------


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Cluster(_Table):
    id: str = Field(min_length=1, max_length=128)


class _Node(_Table):
    id: str = Field(pattern=f"^{NODE_ID.pattern}$")
    listen: str
    peer_listen: str
    data: Path
    url: str | None = None
    peer_address: str | None = None
    ha_listen: str | None = None
    ha_address: str | None = None


class _Log(_Table):
    name: str = Field(pattern=f"^{LOG_NAME.pattern}$")
    replication: Replication = Replication.RAFT
    durability: Durability = Durability.FSYNC
    replicas: int | tuple[str, ...] | None = None
    learners: tuple[str, ...] = ()
    min_in_sync_replicas: int = 1
    unclean: bool = False
    preferred: str | None = None
    retention_ms: int | None = Field(default=None, gt=0)
    retention_bytes: int | None = Field(default=None, gt=0)
    master: str | None = None
    sync_slaves: int | None = Field(default=None, ge=0)
    ha_listen: str | None = None
    ha_address: str | None = None


def _table_of(config: type) -> type[BaseModel]:
    """A pydantic model with the fields of a frozen dataclass; absent keys keep the dataclass's defaults."""
    hints = get_type_hints(config)
    columns: dict[str, Any] = {}
    for column in fields(config):
        default = column.default if column.default is not MISSING else None
        columns[column.name] = (hints[column.name], default)
    return create_model(config.__name__, __base__=_Table, **columns)


_SECTIONS: dict[str, type] = {
    "controller": ControllerConfig,
    "ha": HaConfig,
    "raft": RaftConfig,
    "storage": CommitlogConfig,
    "retention": RetentionConfig,
    "scrub": ScrubConfig,
    "limits": Limits,
    "http": HttpSettings,
    "security": SecuritySettings,
    "tables": TablesSettings,
}


class _File(_Table):
    cluster: _Cluster
    nodes: tuple[_Node, ...] = Field(min_length=1)
    logs: tuple[_Log, ...] = ()


_COLUMNS: dict[str, Any] = {name: (_table_of(config) | None, None) for name, config in _SECTIONS.items()}
_FILE: type[_File] = create_model("File", __base__=_File, **_COLUMNS)


def load(path: str | Path, node_id: str) -> Settings:
    """Read and check a configuration file for the node `node_id`.

    Raises ConfigError with every complaint at once, each led by its place in the file.
    """
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    try:
        return parse(document, node_id)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse(document: Mapping[str, Any], node_id: str) -> Settings:
    """As `load`, from the parsed TOML."""
    try:
        file = TypeAdapter(_FILE).validate_python(document)
    except ValidationError as error:
        raise ConfigError("; ".join(_complaint(item) for item in error.errors())) from error
    sections: dict[str, Any] = {}
    for name, config in _SECTIONS.items():
        table: BaseModel | None = getattr(file, name)
        given = {} if table is None else {key: getattr(table, key) for key in table.model_fields_set}
        try:
            sections[name] = config(**given)
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"[{name}] {error}") from error
    nodes = tuple(_node(node) for node in file.nodes)
    ids = [node.id for node in nodes]
    check(len(set(ids)) == len(ids), "two nodes have the same id")
    for what in ("peer_address", "data"):
        places = [str(getattr(node, what)) for node in nodes]
        check(len(set(places)) == len(places), f"two nodes have the same {what}")
    node = next((node for node in nodes if node.id == node_id), None)
    if node is None:
        raise ConfigError(f"there is no node {node_id!r} in [[nodes]]: {', '.join(ids)}")
    strangers = [name for name in sections["controller"].nodes if name not in ids]
    check(not strangers, f"[controller] unknown nodes {', '.join(strangers)}")
    brokers = list(_brokers(sections["controller"], ids))
    settings = Settings(
        cluster_id=file.cluster.id, node=node, nodes=nodes, logs=_logs(file.logs, ids, brokers), **sections
    )
    _check_exposure(settings)
    return settings


def _complaint(item: Any) -> str:
    place = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        return f"{place}: unknown key"
    return f"{place}: {item['msg']}"


def _node(node: _Node) -> NodeSettings:
    for name, address in (("listen", node.listen), ("peer_listen", node.peer_listen)):
        _checked_address(f"{node.id}.{name}", address)
    peer_address = node.peer_address or node.peer_listen
    _checked_address(f"{node.id}.peer_address", peer_address)
    ha_listen = node.ha_listen or f"{node.peer_listen.rpartition(':')[0]}:0"
    _checked_address(f"{node.id}.ha_listen", ha_listen)
    if node.ha_address is not None:
        _checked_address(f"{node.id}.ha_address", node.ha_address)
    url = (node.url or f"http://{node.listen}").rstrip("/")
    check(url.startswith(("http://", "https://")), f"{node.id}.url must start with http:// or https://")
    return NodeSettings(
        id=node.id,
        listen=node.listen,
        url=url,
        peer_listen=node.peer_listen,
        peer_address=peer_address,
        data=node.data,
        ha_listen=ha_listen,
        ha_address=node.ha_address or (None if ha_listen.endswith(":0") else ha_listen),
    )


def _logs(tables: tuple[_Log, ...], node_ids: list[str], brokers: list[str]) -> tuple[LogSettings, ...]:
    names = [table.name for table in tables]
    check(len(set(names)) == len(names), "two logs have the same name")
    if DEFAULT_LOG not in names:
        tables = (_Log(name=DEFAULT_LOG), *tables)
    return tuple(_log(table, _replicas(table, node_ids, brokers), node_ids) for table in tables)


def _log(table: _Log, replicas: tuple[str, ...], node_ids: list[str]) -> LogSettings:
    classic = table.replication is Replication.CLASSIC
    only_classic = (table.master, table.sync_slaves, table.ha_listen, table.ha_address)
    check(classic or only_classic == (None,) * 4, f"log {table.name}: a key of classic mode in another mode")
    slaves = len(replicas) - 1
    sync_slaves = min(1, slaves) if table.sync_slaves is None else table.sync_slaves
    check(sync_slaves <= slaves or not classic, f"log {table.name}: sync_slaves is at most {slaves}")
    for address in (table.ha_listen, table.ha_address):
        if address is not None:
            _checked_address(f"log {table.name}", address)
    log = LogSettings(
        name=table.name,
        replication=table.replication,
        durability=table.durability,
        replicas=replicas,
        learners=table.learners,
        min_in_sync_replicas=table.min_in_sync_replicas,
        unclean=table.unclean,
        preferred=table.preferred,
        retention=_retention(table),
        sync_slaves=sync_slaves,
        ha_listen=table.ha_listen,
        ha_address=table.ha_address or table.ha_listen,
    )
    try:
        check_spec(log.spec, node_ids)
    except Refused as refused:
        raise ConfigError(f"log {log.name}: {refused}") from refused
    return log


def _retention(table: _Log) -> dict[str, int] | None:
    given = {"ms": table.retention_ms, "bytes": table.retention_bytes}
    return {name: value for name, value in given.items() if value is not None} or None


def _replicas(table: _Log, node_ids: list[str], brokers: list[str]) -> tuple[str, ...]:
    """In classic mode the master first: the one named, else the first of them."""
    replicas = _named_replicas(table, node_ids, brokers)
    if table.master is None:
        return replicas
    check(table.master in replicas, f"log {table.name}: its master is none of its replicas")
    return (table.master, *(replica for replica in replicas if replica != table.master))


def _named_replicas(table: _Log, node_ids: list[str], brokers: list[str]) -> tuple[str, ...]:
    """A number takes that many brokers in the order of the file; absent: all of them."""
    wanted = table.replicas
    if wanted is None:
        return tuple(brokers)
    if isinstance(wanted, int):
        check(1 <= wanted <= len(brokers), f"log {table.name}: {wanted} replicas of {len(brokers)} nodes")
        return tuple(brokers[:wanted])
    check(len(wanted) > 0, f"log {table.name}: no replicas")
    check(len(set(wanted)) == len(wanted), f"log {table.name}: a replica is named twice")
    strangers = [replica for replica in wanted if replica not in node_ids]
    check(not strangers, f"log {table.name}: unknown nodes {', '.join(strangers)}")
    if table.replication is Replication.CLASSIC:
        return wanted
    return tuple(replica for replica in node_ids if replica in wanted)


def split_address(address: str) -> tuple[str, int]:
    """host:port, [v6]:port -> (host, port). Raises ValueError."""
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"{address!r} is not host:port")
    return host.strip("[]"), int(port)


def _checked_address(what: str, address: str) -> None:
    try:
        split_address(address)
    except ValueError as error:
        raise ConfigError(f"{what}: {error}") from error


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches a listener at `address` (host:port)."""
    host, _ = split_address(address)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_exposure(settings: Settings) -> None:
    """Refuse to listen beyond loopback without protection, unless allowed (API.md §7)."""
    security = settings.security
    if security.allow_insecure:
        return
    protected = security.tls_certificate is not None and security.tokens_file is not None
    check(
        protected or is_loopback(settings.node.listen),
        f"listen = {settings.node.listen!r} reaches beyond this machine: set [security] "
        "tls_certificate, tls_key and tokens_file, or allow_insecure = true",
    )
    for log in settings.logs:
        check(
            log.ha_listen is None or is_loopback(log.ha_listen),
            f"log {log.name}: ha_listen reaches beyond this machine, and slaves speak without TLS: set "
            "[security] allow_insecure = true",
        )
    check(
        is_loopback(settings.node.ha_listen),
        f"ha_listen = {settings.node.ha_listen!r} reaches beyond this machine, and slaves speak without "
        "TLS: set [security] allow_insecure = true",
    )
    check(
        is_loopback(settings.node.peer_listen),
        f"peer_listen = {settings.node.peer_listen!r} reaches beyond this machine, and peers speak "
        "without TLS: set [security] allow_insecure = true",
    )
