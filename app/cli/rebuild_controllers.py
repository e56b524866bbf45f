"""`commitlog rebuild-controllers`: rebuild the controllers' log from copies of other nodes."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from app.cli.context import CommandFailed, json_option, print_json

if TYPE_CHECKING:
    from app.node.metadata.rebuild import Rebuilt

_CONSEQUENCE: Final = (
    "A later master may hold acknowledged records that the SyncStateSet above lacks: the log gets a master "
    "once all of its replicas have reported, or by `commitlog elect --unclean`."
)


@click.command("rebuild-controllers")
@click.option(
    "--config",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Configuration file of the cluster (TOML; see conf/).",
)
@click.option(
    "--folder",
    "folders",
    multiple=True,
    metavar="NODE=DATA",
    help="Data folder of a node; replaces the one in the configuration. May be repeated.",
)
@click.option("--source", help="Node whose copy is used. Default: the newest copy.")
@click.option(
    "--replace", is_flag=True, help="Also replace the logs of controllers that were started with empty disks."
)
@json_option
def rebuild_controllers_command(
    config: Path, folders: tuple[str, ...], source: str | None, replace: bool, as_json: bool
) -> None:
    """Rebuild the log of the controllers after a majority of them has lost its disks.

    Every node keeps a copy of that log. Stop all nodes first. The command reads the data folders that exist
    on this machine, takes the newest copy, and writes it to each controller that lacks it. Copy the folders
    of other machines to this one and set them with --folder. Then start all nodes.

    Changes that no copy contains are lost: the last committed elections and changes of SyncStateSets and
    logs. The command reports each log of which such a change may be lost: a node has recorded a newer master
    epoch or SyncStateSet, a node's record of them is damaged or missing, or the folder of a replica is not
    here. Such a log gets a master once all of its replicas have reported what they hold.

    \b
    Examples:
      commitlog rebuild-controllers --config conf/controller.toml --folder n3=/mnt/n3/commitlog
    """
    found = _rebuild(config, folders, source, replace=replace)
    not_known = f"all changes committed after record {found.events - 1}"
    if as_json:
        print_json(_result(found, not_known))
        return
    click.echo(f"copied {found.events:,} records of {found.source} to {', '.join(found.copied)}")
    for log in found.logs:
        click.echo(f"  {log.name}: {log.spec.replication}, SyncStateSet {', '.join(log.set_nodes) or '-'}")
    click.echo(f"Lost, if any: {not_known}.")
    for name, (node, epoch) in found.doubts.items():
        click.echo(
            f"WARNING log {name}: {node} has recorded master epoch {epoch}, which "
            f"no copy of the metadata has. {_CONSEQUENCE}"
        )
    for name, node in found.newer_sets.items():
        click.echo(f"WARNING log {name}: the copy of {node} has a newer SyncStateSet. {_CONSEQUENCE}")
    for name, nodes in found.unnamed.items():
        click.echo(
            f"WARNING log {name}: {', '.join(nodes)} keeps a copy and was no replica by the metadata: it may "
            f"have been added since, so it is a replica now. {_CONSEQUENCE}"
        )
    for name, nodes in found.unknown.items():
        click.echo(
            f"WARNING log {name}: the newest master epoch or SyncStateSet of {', '.join(nodes)} is not "
            "known: the vote file is damaged or missing, the copy of the metadata is missing or in repair, "
            f"or the data folder is not here. {_CONSEQUENCE}"
        )
    for name, nodes in found.unopened.items():
        click.echo(
            f"WARNING log {name}: {', '.join(nodes)} keeps its files, and no copy of the metadata has its "
            "creation. They stay, and a new log of that name is not opened there until you have moved them "
            "away."
        )


def _rebuild(config: Path, folders: tuple[str, ...], source: str | None, *, replace: bool) -> "Rebuilt":
    """Lock the data folders of the stopped nodes, and rebuild the controllers' log. Raises CommandFailed."""
    from app.errors import ConfigError
    from app.node.metadata.rebuild import NodeFolder, rebuild
    from app.node.node_identity import check_stamp
    from app.settings.file import load
    from storage.errors import StorageError
    from storage.files import OsFileSystem

    files = OsFileSystem()
    locks = []
    try:
        first = load(config, _any_node(config))
        named = dict(_named(each) for each in folders)
        nodes = []
        for node in first.nodes:
            data = Path(named.get(node.id, node.data)).absolute()
            if data.exists() or node.id in first.controllers:
                files.make_folders(str(data))
                locks.append(files.lock(f"{data}/lock"))
                check_stamp(files, f"{data}/node.json", first.cluster_id, node.id)
                nodes.append(NodeFolder(node.id, files, str(data)))
        return rebuild(
            nodes,
            first.controllers,
            cluster_id=first.cluster_id,
            storage=first.storage,
            configured={log.name: log.spec for log in first.logs},
            now_ms=time.time_ns() // 1_000_000,
            replace=replace,
            source=source,
        )
    except (ConfigError, StorageError) as error:
        raise CommandFailed(str(error)) from error
    finally:
        for lock in locks:
            lock.release()


def _result(found: "Rebuilt", not_known: str) -> dict[str, Any]:
    return {
        "source": found.source,
        "records": found.events,
        "copied_to": found.copied,
        "logs": [
            {
                "name": log.name,
                "replication": log.spec.replication,
                "epoch": log.master_epoch,
                "sync_state_set": list(log.set_nodes),
            }
            for log in found.logs
        ],
        "doubts": [
            *(
                {"log": log, "node": node, "known_epoch": epoch}
                for log, (node, epoch) in found.doubts.items()
            ),
            *({"log": log, "node": node, "known_epoch": None} for log, node in found.newer_sets.items()),
            *(
                {"log": log, "node": node, "known_epoch": None}
                for log, nodes in found.unknown.items()
                for node in nodes
            ),
        ],
        "unnamed": [{"log": log, "node": node} for log, nodes in found.unnamed.items() for node in nodes],
        "unopened": [{"log": log, "node": node} for log, nodes in found.unopened.items() for node in nodes],
        "not_known": not_known,
    }


def _named(text: str) -> tuple[str, str]:
    node, _, data = text.partition("=")
    if not node or not data:
        raise click.BadParameter(f"NODE=DATA is required, got {text!r}", param_hint="--folder")
    return node, data


def _any_node(config: Path) -> str:
    """Return the id of the first node: settings are read for one node, and any node will do."""
    import tomllib

    nodes = tomllib.loads(config.read_text("utf-8")).get("nodes") or [{}]
    return str(nodes[0].get("id", ""))
