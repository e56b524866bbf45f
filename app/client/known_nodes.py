"""Nodes that earlier commands have learned, so that a command works while the node it names is down.

One JSON file of the user: the nodes of a cluster, by the endpoint that a command was given. It is a cache:
without it, or with a file that cannot be read or written, commands use the endpoints that they are given.
"""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from app.settings.home_folder import home_folder

MAX_CLUSTERS = 50  # the oldest are forgotten


class _Known(msgspec.Struct):
    """Nodes of a cluster, and its id, by the endpoint that a command was given."""

    nodes: dict[str, list[str]] = {}
    clusters: dict[str, str] = {}


def path() -> Path:
    """The file: COMMITLOG_STATE, else commitlog/nodes.json in the user's folder for state (XDG)."""
    if named := os.environ.get("COMMITLOG_STATE"):
        return Path(named)
    home = os.environ.get("XDG_STATE_HOME") or home_folder() / ".local" / "state"
    return Path(home) / "commitlog" / "nodes.json"


def endpoints_of(given: Sequence[str], fallback: str) -> list[str]:
    """The endpoints to try: the given ones, else `fallback`; then what is known of their cluster."""
    known = _load()
    first = list(given) or [fallback]
    learned = [url for endpoint in first for url in known.nodes.get(endpoint, [])]
    return list(dict.fromkeys([*first, *learned]))


def cluster_of(endpoint: str) -> str | None:
    """The id of the cluster that `endpoint` belonged to; None if no node has reported one."""
    return _load().clusters.get(endpoint)


def remember(endpoint: str, nodes: Sequence[str], cluster: str | None = None) -> None:
    """Keep the nodes and the id of the cluster that `endpoint` belongs to.

    What is known of other endpoints is forgotten if one of these nodes is in it and the others are not: an
    address may belong to another cluster by now, and a command would write there.
    """
    known = _load()
    if known.nodes.get(endpoint) == list(nodes) and known.clusters.get(endpoint) == cluster:
        return
    known.nodes.pop(endpoint, None)
    known.nodes = {
        other: urls
        for other, urls in known.nodes.items()
        if set(urls) == set(nodes) or set(urls).isdisjoint(nodes)
    }
    known.nodes[endpoint] = list(nodes)
    while len(known.nodes) > MAX_CLUSTERS:
        del known.nodes[next(iter(known.nodes))]
    known.clusters = {other: found for other, found in known.clusters.items() if other in known.nodes}
    known.clusters.pop(endpoint, None)
    if cluster is not None:
        known.clusters[endpoint] = cluster
    _save(known)


def _load() -> _Known:
    try:
        return msgspec.json.decode(path().read_bytes(), type=_Known)
    except (OSError, msgspec.DecodeError):
        return _Known()


def _save(known: _Known) -> None:
    file = path()
    whole = file.with_name(f"{file.name}.{os.getpid()}")
    with contextlib.suppress(OSError):  # a cache: a home folder that is read-only is not an error
        file.parent.mkdir(parents=True, exist_ok=True)
        whole.write_bytes(msgspec.json.encode(known))
        whole.replace(file)
