"""`commitlog backup`: the committed records of a log as files, verified against the log."""

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.cli.context import (
    CommandFailed,
    ExitCode,
    Target,
    counted,
    person_watches,
    print_json,
    target_options,
)
from storage.units import MIB

if TYPE_CHECKING:
    import pyarrow as pa

    from app.cli.backup.folder import BackupManifest
    from app.client import CommitlogClient

PART_RECORDS = 100_000  # of one file
PART_BYTES = 64 * MIB
PAGE_BYTES = 16 * MIB


@click.command("backup")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--cursor", "cursors", multiple=True, help="Keep the position of this cursor. May be repeated.")
@target_options
def backup_command(target: Target, folder: Path, cursors: tuple[str, ...]) -> None:
    """Copy the committed records of a log into FOLDER, while the log is in use.

    The copy ends at the index that is committed at the start: all records below it are copied, with keys,
    headers, timestamps, indexes and terms, and the schemas of the log. Each file is compared with the
    digests of the log and listed in manifest.json with its checksum. The same command again adds the records
    that are new; an interrupted backup continues. `commitlog restore --check FOLDER` verifies a backup
    without a cluster.

    Not kept: idempotency keys, producers, the fencing token, and cursors other than --cursor.

    \b
    Examples:
      commitlog backup /backups/orders --log orders
      commitlog backup /backups/orders --log orders --cursor etl --json
    """
    from app.cli.backup.folder import locked
    from app.client.errors import NotFound, OtherLog

    with locked(folder), target.client() as client:
        try:
            added, manifest = _backup(client, folder, cursors)
        except OtherLog as error:
            raise _of_earlier_log(folder, client.log) from error
        except NotFound as error:
            if error.code != "index-trimmed":
                raise
            raise CommandFailed(
                f"{error}. Records were trimmed before they were copied; what {folder} lists is valid",
                ExitCode.NOT_FOUND,
            ) from error
    if target.as_json:
        print_json(summary(manifest) | {"added": added, "folder": str(folder)})
        return
    click.echo(
        f"{folder}: {counted(manifest.records)} of {manifest.log} ({added:,} new), all that was committed "
        f"below index {manifest.next_index:,}, equal to the log"
    )


def summary(manifest: "BackupManifest") -> dict[str, Any]:
    """Return what a backup holds."""
    return {
        "id": manifest.id,
        "cluster": manifest.cluster,
        "log": manifest.log,
        "records": manifest.records,
        "files": len(manifest.parts),
        "begin_index": manifest.begin_index,
        "next_index": manifest.next_index,
        "updated": manifest.updated,
    }


def _backup(
    client: "CommitlogClient", folder: Path, cursors: tuple[str, ...]
) -> tuple[int, "BackupManifest"]:
    """Add what the folder lacks. Return the number of new records and the manifest."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from app.cli.backup.folder import load, save, write_part
    from app.client.operations import Operations

    operations = Operations(client)
    kept = {name: operations.cursor(name).index for name in cursors}
    tail = client.tail()
    settings, cluster = operations.log(client.log), client.cluster()["id"]
    end, begin = tail["committed_index"] + 1, max(0, tail["begin_index"])
    manifest = load(folder)
    if manifest is None:
        manifest = _new_manifest(folder, cluster, client.log, settings, begin)
    else:
        _check_same_log(client, folder, manifest, cluster, begin, end)
        _check_same_id(folder, manifest, settings)
    manifest.settings, manifest.cursors = settings, {**manifest.cursors, **kept}
    manifest.schemas = [each for each in client.schemas(min_index=end - 1) if each["index"] < end]
    before, at = manifest.records, manifest.next_index
    bar = (TextColumn("backup"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*bar, console=console, transient=True, disable=not person_watches()) as progress:
        task = progress.add_task("backup", total=end - at)
        while at < end:
            table, until = _next_records(client, at, end, manifest.settings["id"])
            if table.num_rows:
                _compare(client, table, at, until)
                _check_same_id(folder, manifest, operations.log(client.log))  # after all reads of the file
                manifest.parts.append(write_part(folder, table))
            progress.update(task, advance=until - at)
            manifest.next_index = at = until
            manifest.updated = _now()
            save(folder, manifest)
    manifest.updated = _now()
    save(folder, manifest)
    return manifest.records - before, manifest


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _new_manifest(
    folder: Path, cluster: str, log: str, settings: Mapping[str, Any], begin: int
) -> "BackupManifest":
    from app.cli.backup.folder import BackupManifest
    from app.version import VERSION

    others = [path.name for path in folder.iterdir() if not _is_of_a_backup(path.name)]
    if others:
        raise CommandFailed(f"{folder} is not empty and has no manifest: name an empty folder, or a backup")
    now = _now()
    return BackupManifest(str(uuid.uuid4()), cluster, log, dict(settings), begin, begin, now, now, VERSION)


def _is_of_a_backup(name: str) -> bool:
    return name.startswith((".lock", ".manifest.json", "records-"))


def _check_same_log(
    client: "CommitlogClient", folder: Path, manifest: "BackupManifest", cluster: str, begin: int, end: int
) -> None:
    """Raise CommandFailed unless the backup can continue: it is of this log, and no index is missing."""
    from app.cli.backup.folder import Content, read_part

    if (manifest.cluster, manifest.log) != (cluster, client.log):
        raise CommandFailed(
            f"{folder} is a backup of the log {manifest.log} of cluster {manifest.cluster}, not of "
            f"{client.log} of {cluster}: name another folder"
        )
    if manifest.next_index > end:
        raise _of_earlier_log(folder, client.log)
    if begin > manifest.next_index:
        raise CommandFailed(
            f"the records from {manifest.next_index} to {begin - 1} were trimmed before they were copied: "
            "name a new folder"
        )
    if manifest.parts and manifest.parts[-1].last_index >= begin:
        last = read_part(folder, manifest.parts[-1]).slice(manifest.parts[-1].records - 1)
        at, log_id = manifest.parts[-1].last_index, manifest.settings["id"]
        there, _, _ = client.read_arrow(at, limit=1, log_id=log_id)
        same = [[table.column(name).to_pylist() for name in ("index", "term")] for table in (last, there)]
        if same[0] != same[1] or Content().add(last).hexdigest() != Content().add(there).hexdigest():
            raise _of_earlier_log(folder, client.log)


def _check_same_id(folder: Path, manifest: "BackupManifest", settings: Mapping[str, Any]) -> None:
    """Raise CommandFailed when the log of that name was deleted and created again since it was copied."""
    if manifest.settings["id"] != settings["id"]:
        raise _of_earlier_log(folder, manifest.log)


def _of_earlier_log(folder: Path, log: str) -> CommandFailed:
    return CommandFailed(f"{folder} is of an earlier log {log}, which was deleted since: name a new folder")


def _next_records(client: "CommitlogClient", at: int, end: int, log_id: str) -> tuple["pa.Table", int]:
    """Return the records of the next file, and the index after the last one read. Each answer proves of
    which log it is: nodes may differ in what they know of a deletion. Raises OtherLog."""
    import pyarrow as pa

    tables: list[pa.Table] = []
    rows = size = 0
    while True:
        room = PART_RECORDS - rows
        table, at, more = client.read_arrow(
            at, until_index=end, limit=room, max_bytes=PAGE_BYTES, log_id=log_id
        )
        tables.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        if not more or rows >= PART_RECORDS or size >= PART_BYTES:
            return pa.concat_tables(tables), at if more else end


def _compare(client: "CommitlogClient", table: "pa.Table", from_index: int, until: int) -> None:
    """Compare the records with the digests of the log. Raises CommandFailed where they differ."""
    from app.client.tables import Tables
    from app.tables.digests import BlockSum, block_sums, first_unequal

    there: dict[int, BlockSum] = {}
    for page in Tables(client).digests(from_index, until):
        for first, found in page.sums.items():
            there[first] = there.get(first, BlockSum()) + found
    if (first_different := first_unequal(there, block_sums(table))) is not None:
        raise CommandFailed(
            f"the copy differs from the log in the block of index {first_different}; run the command again, "
            "and `commitlog verify --deep` if it repeats"
        )
