"""DATA/node.json: the owner of a data folder, so that no node uses the folder of another one."""

import msgspec

from app.errors import ConfigError
from storage.file_system import FileSystem, write_durably


class _Stamp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of node.json."""

    cluster: str
    node: str
    format: int = 1


def check_stamp(files: FileSystem, path: str, cluster_id: str, node_id: str) -> None:
    """Stamp a new folder; raise ConfigError for one of another node or cluster. Blocks."""
    stamp = _Stamp(cluster_id, node_id)
    if not files.exists(path):
        write_durably(files, path, msgspec.json.encode(stamp) + b"\n")
        return
    try:
        found = msgspec.json.decode(files.read(path), type=_Stamp)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if found != stamp:
        raise ConfigError(
            f"{path}: the folder belongs to node {found.node!r} of cluster {found.cluster!r} (format "
            f"{found.format}), not to {stamp.node!r} of {stamp.cluster!r}"
        )
