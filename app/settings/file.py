"""Reader of a node's configuration file (conf/*.toml) into frozen dataclasses; unknown keys are refused.

docs/configuration.md lists every section and key; `make docs` writes it from the docstrings of the fields.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from app.controller.commands import Refused
from app.controller.config import ControllerConfig
from app.controller.settings_of_logs import check_spec
from app.errors import ConfigError, check
from app.ha.config import HaConfig
from app.ha.roles import ADDRESS_MAX_BYTES
from app.log.contract import Durability
from app.names import LOG_NAME, NODE_ID
from app.raft.config import RaftConfig
from app.settings.addresses import base_url, is_loopback, split_address
from app.settings.model import (
    DEFAULT_LOG,
    DiskConfig,
    HttpSettings,
    JournalConfig,
    Limits,
    LoggingSettings,
    LogSettings,
    NodeSettings,
    Replication,
    RetentionConfig,
    ScrubConfig,
    SecuritySettings,
    Settings,
    TablesSettings,
    TracingSettings,
    brokers_of,
)
from app.settings.toml import load_toml, validated
from storage.log.commitlog import CommitlogConfig


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Cluster(_Table):
    id: str = Field(min_length=1, max_length=128)
    """Name of the cluster, 1 to 128 characters; nodes of another cluster are refused."""


class _NodeTable(_Table):
    id: str = Field(pattern=NODE_ID.anchored)
    """Id of the node: 1 to 32 letters, digits, `.`, `_` or `-`; the first is a letter or a digit."""
    listen: str
    """Address (host:port) of the REST listener."""
    peer_listen: str
    """Address (host:port) of the listener for other nodes."""
    data: Path
    """Data folder; a relative one is relative to the folder in which the node is started."""
    url: str | None = None
    """Base URL under which clients and other nodes reach the REST listener; absent: derived from `listen`."""
    peer_address: str | None = None
    """Address under which other nodes reach `peer_listen`; absent: `peer_listen`."""
    ha_listen: str | None = None
    """Address of the listener for slaves (controller and classic mode); absent: a free port on the host of
    `peer_listen`."""
    ha_address: str | None = None
    """Address under which slaves reach `ha_listen`; absent: `ha_listen`, or the port that was bound."""


class _LogTable(_Table):
    name: str = Field(pattern=LOG_NAME.anchored)
    """Name of the log; the log `default` exists without being named."""
    replication: Replication = Replication.RAFT
    """Replication mode: `raft`, `controller` (elected master) or `classic` (configured master)."""
    durability: Durability = Durability.FSYNC
    """`fsync`: acknowledged records are on disk; `replicated`: written to the operating system of a
    majority."""
    replicas: int | tuple[str, ...] | None = None
    """Ids of the nodes that keep the log, or their number in the order of the file; absent: all brokers."""
    learners: tuple[str, ...] = ()
    """Replicas without a vote, which never lead (Raft and controller mode)."""
    min_in_sync_replicas: int = 1
    """Replicas in sync, the master included, below which appends are refused (controller and classic
    mode)."""
    in_sync_replicas: int | None = None
    """Members of the SyncStateSet, the master included, that must hold a record before it is acknowledged,
    at least 2; absent: all members (controller mode)."""
    unclean: bool = False
    """Allow a master that may lack acknowledged records (C-05); classic mode: open an epoch without
    hearing the others."""
    preferred: str | None = None
    """Replica that leads when it can (Raft), or wins an election between equal copies (controller mode)."""
    priorities: dict[str, int] = {}
    """Priority of each node in an election between equal copies, the lower number wins; absent: last
    (controller mode)."""
    retention_ms: int | None = Field(default=None, gt=0)
    """Age after which a record is removed; absent: no limit, or as `[retention]` if `retention_bytes` is
    absent too."""
    retention_bytes: int | None = Field(default=None, gt=0)
    """Stored size above which the oldest records are removed; absent: no limit, or as `[retention]` if
    `retention_ms` is absent too."""
    master: str | None = None
    """Id of the master (classic mode); absent: the first replica."""
    sync_slaves: int | None = Field(default=None, ge=0)
    """Slaves that a synchronous append waits for (classic mode, H-07); absent: 1, or 0 without slaves."""
    auto_in_sync_replicas: bool | None = None
    """Wait only for the slaves in sync when they are fewer than `sync_slaves` (classic mode); absent:
    false."""
    ha_listen: str | None = None
    """Address of a listener for the slaves of this log alone, at its master (classic mode)."""
    ha_address: str | None = None
    """Address under which slaves reach the log's own `ha_listen` (classic mode); absent: `ha_listen`."""


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
    "disk": DiskConfig,
    "journal": JournalConfig,
    "retention": RetentionConfig,
    "scrub": ScrubConfig,
    "limits": Limits,
    "http": HttpSettings,
    "security": SecuritySettings,
    "tables": TablesSettings,
    "logging": LoggingSettings,
    "tracing": TracingSettings,
}


class _File(_Table):
    cluster: _Cluster
    nodes: tuple[_NodeTable, ...] = Field(min_length=1)
    logs: tuple[_LogTable, ...] = ()


_COLUMNS: dict[str, Any] = {name: (_table_of(config) | None, None) for name, config in _SECTIONS.items()}
_FILE: type[_File] = create_model("File", __base__=_File, **_COLUMNS)


def load(path: str | Path, node_id: str) -> Settings:
    """Read and check a configuration file for the node `node_id`.

    Raises ConfigError with every complaint at once, each led by its place in the file.
    """
    return load_toml(Path(path), lambda document: parse(document, node_id))


def parse(document: Mapping[str, Any], node_id: str) -> Settings:
    """As `load`, from the parsed TOML."""
    file = validated(_FILE, document)
    sections: dict[str, Any] = {}
    for name, config in _SECTIONS.items():
        table: BaseModel | None = getattr(file, name)
        given = {} if table is None else {key: getattr(table, key) for key in table.model_fields_set}
        try:
            sections[name] = config(**given)
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"[{name}] {error}") from error
    scheme = "http" if sections["security"].tls_certificate is None else "https"
    nodes = tuple(_node(node, scheme) for node in file.nodes)
    ids = [node.id for node in nodes]
    check(len(set(ids)) == len(ids), f"[[nodes]] id must be unique: {', '.join(ids)}")
    for what in ("url", "peer_address", "data"):
        places = [str(getattr(node, what)) for node in nodes]
        check(len(set(places)) == len(places), f"[[nodes]] {what} must be unique: {', '.join(places)}")
    node = next((node for node in nodes if node.id == node_id), None)
    if node is None:
        raise ConfigError(f"[[nodes]] has no node {node_id!r}; its nodes are {', '.join(ids)}")
    unknown = [name for name in sections["controller"].nodes if name not in ids]
    check(not unknown, f"[controller] unknown nodes {', '.join(unknown)}")
    brokers = list(brokers_of(sections["controller"], ids))
    settings = Settings(
        cluster_id=file.cluster.id, node=node, nodes=nodes, logs=_logs(file.logs, ids, brokers), **sections
    )
    _check_exposure(settings)
    _check_ha_address(settings)
    return settings


def _node(node: _NodeTable, scheme: str) -> NodeSettings:
    """scheme: of the node's URL when the file does not set one."""
    for name, address in (("listen", node.listen), ("peer_listen", node.peer_listen)):
        _checked_address(f"{node.id}.{name}", address)
    peer_address = node.peer_address or node.peer_listen
    _checked_address(f"{node.id}.peer_address", peer_address)
    ha_listen = node.ha_listen or f"{node.peer_listen.rpartition(':')[0]}:0"
    _checked_address(f"{node.id}.ha_listen", ha_listen)
    if node.ha_address is not None:
        _checked_address(f"{node.id}.ha_address", node.ha_address)
    try:
        url = base_url(node.url or f"{scheme}://{node.listen}")
    except ValueError as error:
        raise ConfigError(f"{node.id}.url {error}") from error
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


def _logs(tables: tuple[_LogTable, ...], node_ids: list[str], brokers: list[str]) -> tuple[LogSettings, ...]:
    names = [table.name for table in tables]
    check(len(set(names)) == len(names), f"[[logs]] name must be unique: {', '.join(names)}")
    if DEFAULT_LOG not in names:
        tables = (_LogTable(name=DEFAULT_LOG), *tables)
    return tuple(_log(table, _replicas(table, node_ids, brokers), node_ids) for table in tables)


def _log(table: _LogTable, replicas: tuple[str, ...], node_ids: list[str]) -> LogSettings:
    classic = table.replication is Replication.CLASSIC
    only_classic = ("master", "sync_slaves", "auto_in_sync_replicas", "ha_listen", "ha_address")
    given = [key for key in only_classic if getattr(table, key) is not None]
    check(classic or not given, f"log {table.name}: {', '.join(given)}: allowed in classic mode only")
    slaves = len(replicas) - 1
    sync_slaves = min(1, slaves) if table.sync_slaves is None else table.sync_slaves
    check(
        sync_slaves <= slaves or not classic,
        f"log {table.name}: sync_slaves must be at most {slaves}, got {sync_slaves}",
    )
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
        priorities=table.priorities,
        in_sync_replicas=table.in_sync_replicas,
        retention=_retention(table),
        sync_slaves=sync_slaves,
        auto_in_sync_replicas=bool(table.auto_in_sync_replicas),
        ha_listen=table.ha_listen,
        ha_address=table.ha_address or table.ha_listen,
    )
    try:
        check_spec(log.spec, node_ids)
    except Refused as refused:
        raise ConfigError(f"log {log.name}: {refused}") from refused
    return log


def _retention(table: _LogTable) -> dict[str, int] | None:
    given = {"ms": table.retention_ms, "bytes": table.retention_bytes}
    return {name: value for name, value in given.items() if value is not None} or None


def _replicas(table: _LogTable, node_ids: list[str], brokers: list[str]) -> tuple[str, ...]:
    """Return the replicas. In classic mode the master is the first of them."""
    replicas = _named_replicas(table, node_ids, brokers)
    if table.master is None:
        return replicas
    names = ", ".join(replicas)
    check(
        table.master in replicas,
        f"log {table.name}: master must be one of its replicas {names}, got {table.master!r}",
    )
    return (table.master, *(replica for replica in replicas if replica != table.master))


def _named_replicas(table: _LogTable, node_ids: list[str], brokers: list[str]) -> tuple[str, ...]:
    """A number takes that many brokers in the order of the file; absent: all of them."""
    wanted = table.replicas
    if wanted is None:
        return tuple(brokers)
    if isinstance(wanted, int):
        check(
            1 <= wanted <= len(brokers),
            f"log {table.name}: replicas must be between 1 and {len(brokers)}, got {wanted}",
        )
        return tuple(brokers[:wanted])
    check(len(wanted) > 0, f"log {table.name}: replicas must not be empty")
    check(len(set(wanted)) == len(wanted), f"log {table.name}: replicas must be unique: {', '.join(wanted)}")
    unknown = [replica for replica in wanted if replica not in node_ids]
    check(not unknown, f"log {table.name}: unknown nodes {', '.join(unknown)}")
    if table.replication is Replication.CLASSIC:
        return wanted
    return tuple(replica for replica in node_ids if replica in wanted)


def _checked_address(what: str, address: str) -> None:
    try:
        split_address(address)
    except ValueError as error:
        raise ConfigError(f"{what}: {error}") from error


def _check_ha_address(settings: Settings) -> None:
    """Refuse an address that the handshake which the file asks for cannot carry (A-07)."""
    address = settings.node.ha_address or ""
    size = len(address.encode())
    check(
        size <= ADDRESS_MAX_BYTES or settings.ha.speaks_by_number(address),
        f"{settings.node.id}.ha_address must be at most {ADDRESS_MAX_BYTES} bytes with "
        f"[ha] ha_handshake_by_number = false, got {size}: remove that key or set it to true",
    )


def _check_exposure(settings: Settings) -> None:
    """Refuse to listen beyond loopback without protection, unless allowed (docs/api.md §7)."""
    security, node = settings.security, settings.node
    if security.allow_insecure:
        return
    protected = security.tls_certificate is not None and security.tokens_file is not None
    check(
        protected or security.allow_insecure_rest or is_loopback(node.listen),
        f"listen = {node.listen!r} is reachable from beyond this machine: set [security] "
        "tls_certificate, tls_key and tokens_file, or allow_insecure_rest = true",
    )
    if security.protects_nodes:
        return
    check(
        security.allow_insecure_peers or is_loopback(node.peer_listen),
        _exposed(f"peer_listen = {node.peer_listen!r}", "allow_insecure_peers"),
    )
    ha_listeners = {"ha_listen": node.ha_listen} | {
        f"log {log.name}: ha_listen": log.ha_listen for log in settings.logs if log.ha_listen is not None
    }
    for name, address in ha_listeners.items():
        check(
            security.allow_insecure_ha or is_loopback(address),
            _exposed(f"{name} = {address!r}", "allow_insecure_ha"),
        )


def _exposed(listener: str, allowed_by: str) -> str:
    return (
        f"{listener} is reachable from beyond this machine: set [security] cluster_secret_file, or "
        f"peer_tls_certificate, peer_tls_key and peer_tls_ca, or {allowed_by} = true"
    )
