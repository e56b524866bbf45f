"""`commitlog restore`: a backup into a new log, exactly once, verified record by record."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from app.cli.backup.backup import summary
from app.cli.backup.limits import check_limits, record_sizes
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
    from app.client import Appended, CommitlogClient

BATCH_RECORDS = 5_000  # of one append; both are a part of what a resumed restore relies on
BATCH_BYTES = 8 * MIB
SCHEMA_FIELDS = ("message", "key_columns", "compatibility", "on_invalid", "cluster_by")
SETTINGS = ("replication", "durability", "min_in_sync_replicas", "in_sync_replicas", "unclean")


@dataclass
class Restored:
    """Progress of a restore. last_index: of the newest record restored, in the new log. schemas: number of
    versions that the new log has."""

    last_index: int = -1
    records: int = 0
    schemas: int = 0


@click.command("restore")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--check", is_flag=True, help="Verify the checksums of the backup only. No node is called.")
@click.option("--replicas", type=click.IntRange(1), help="Number of replicas. Default: as in the backup.")
@target_options
@click.pass_context
def restore_command(
    ctx: click.Context, target: Target, folder: Path, check: bool, replicas: int | None
) -> None:
    """Restore the backup in FOLDER into the log --log (default: its name in the backup).

    All files and the limits of the cluster are checked before anything is written. The log is created with
    the settings of the backup. A log that exists must have no records other than
    those of this backup: an interrupted restore continues, and stores nothing twice. At the end all records
    are read back and compared with the backup. Retention is set after that.

    Keys, values, headers, timestamps, schemas and the order are restored; indexes and terms are those of the
    new log.
    Cursors that the backup has are moved to the same records.

    \b
    Examples:
      commitlog restore --check /backups/orders
      commitlog restore /backups/orders
      commitlog restore /backups/orders --log orders-of-monday --replicas 3
    """
    from app.cli.backup.folder import load, read_part

    if check and (replicas is not None or ctx.get_parameter_source("log") is ParameterSource.COMMANDLINE):
        raise click.UsageError("--log and --replicas cannot be used with --check, which restores nothing")
    manifest = load(folder)
    if manifest is None:
        raise CommandFailed(f"{folder} has no manifest.json: it is not a backup", ExitCode.NOT_FOUND)
    if check:
        for part in manifest.parts:
            read_part(folder, part)
        _print_outcome(
            target, summary(manifest), f"{folder}: {counted(manifest.records)} of {manifest.log}, intact"
        )
        return
    if ctx.get_parameter_source("log") in (None, ParameterSource.DEFAULT):
        target = replace(target, log=manifest.log)
    with target.client(writes=True) as client:
        limits = client.cluster()["limits"]
        check_limits(folder, manifest, limits)
        _prepare(client, manifest, replicas)
        restored = _append_all(client, folder, manifest, limits)
        cursors = _verify(client, folder, manifest, restored)
        retention = _finish(client, manifest, cursors)
    document = {"log": target.log, "records": restored.records, "next_index": restored.last_index + 1}
    document |= {"cursors": cursors, "retention": retention, "schemas": len(manifest.schemas)}
    document |= {"verified": True, "backup": manifest.id}
    words = f"{target.log}: {counted(restored.records)} restored from {folder}, equal to the backup"
    _print_outcome(target, document, words)


def _print_outcome(target: Target, document: Mapping[str, Any], words: str) -> None:
    if target.as_json:
        print_json(document)
    else:
        click.echo(words)


def _prepare(client: "CommitlogClient", manifest: "BackupManifest", replicas: int | None) -> None:
    """Create the log unless it exists, without retention: old records must not be removed at once."""
    from app.client.errors import NotFound
    from app.client.operations import Operations

    operations = Operations(client)
    try:
        there = operations.log(client.log).get("replicas") or []
        if replicas not in (None, len(there)):
            raise CommandFailed(
                f"the log {client.log} exists, on {', '.join(there)}: --replicas is for a new log; "
                f"`commitlog logs change {client.log} --replicas {replicas}` moves it",
                ExitCode.USAGE,
            )
        return
    except NotFound as error:
        if error.code != "log-not-found":
            raise
    asked = {name: manifest.settings[name] for name in SETTINGS if manifest.settings.get(name) is not None}
    wanted = manifest.settings.get("replicas")
    nodes = {node["id"] for node in client.cluster()["nodes"]}
    if replicas is not None:
        asked["replicas"] = replicas
    elif isinstance(wanted, list) and wanted and nodes.issuperset(wanted):
        asked["replicas"] = wanted
        for name in ("learners", "preferred", "priorities"):
            if manifest.settings.get(name) and asked.get("replication") != "classic":  # it has none of them
                asked[name] = manifest.settings[name]
    operations.create_log({"name": client.log, **asked})


def _batches(
    folder: Path, manifest: "BackupManifest", limits: Mapping[str, Any]
) -> Iterator[tuple["pa.Table", int]]:
    """Yield (appends, index of the first record in the backup). They depend on the backup and on the limits
    of the cluster alone, so that a resumed restore sends the same ones. No append has records before and
    after a version of the schema."""
    from app.cli.backup.folder import read_part

    max_records = min(BATCH_RECORDS, limits["max_request_records"])
    max_bytes = min(BATCH_BYTES, limits["max_request_bytes"] // 2)  # of contents; the rest is for Arrow
    for part in manifest.parts:
        whole = read_part(folder, part)
        indexes = whole.column("index").to_pylist()
        table = whole.select(["value", "key", "timestamp", "headers"])
        sizes = record_sizes(table)
        borders = {bisect_left(indexes, each["index"]) for each in manifest.schemas}
        start = size = 0
        for row, row_bytes in enumerate(sizes):
            is_full = row - start >= max_records or size + row_bytes > max_bytes
            if row > start and (is_full or row in borders):
                yield table.slice(start, row - start).combine_chunks(), indexes[start]
                start, size = row, 0
            size += row_bytes
        yield table.slice(start).combine_chunks(), indexes[start]


def _append_all(
    client: "CommitlogClient", folder: Path, manifest: "BackupManifest", limits: Mapping[str, Any]
) -> Restored:
    """Append every batch once. By the producer of the backup the log knows which ones it has."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = (TextColumn("restore"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    restored, known = Restored(schemas=_known_schemas(client, manifest)), 0
    console = Console(stderr=True)
    with Progress(*bar, console=console, transient=True, disable=not person_watches()) as progress:
        task = progress.add_task("restore", total=manifest.records)
        for number, (batch, first_index) in enumerate(_batches(folder, manifest, limits)):
            _set_schemas(client, manifest, restored, first_index)
            if number == 0:
                known = _known_appends(client, manifest, batch)
            if number >= known - 1:  # the last known one is repeated, for its index
                appended = _append(client, manifest, number, batch, restored)
                restored.last_index = appended.last_index
            restored.records += batch.num_rows
            progress.update(task, advance=batch.num_rows)
    _set_schemas(client, manifest, restored, manifest.next_index)
    return restored


def _known_schemas(client: "CommitlogClient", manifest: "BackupManifest") -> int:
    """Return the number of versions that the log has. Raises CommandFailed for other versions."""
    there = client.schemas()
    fields = ("format", "definition", *SCHEMA_FIELDS)
    same = [{name: each[name] for name in fields} for each in there] == [
        {name: each[name] for name in fields} for each in manifest.schemas[: len(there)]
    ]
    if not same:
        raise CommandFailed(
            f"the log {client.log} has a schema that is not of this backup: name a new log with --log",
            ExitCode.CONDITION_FAILED,
        )
    return len(there)


def _set_schemas(
    client: "CommitlogClient", manifest: "BackupManifest", restored: Restored, before: int
) -> None:
    """Set the versions of the schema that were set before the index `before` of the original log."""
    for each in manifest.schemas[restored.schemas :]:
        if each["index"] >= before:
            return
        fields = {name: each[name] for name in SCHEMA_FIELDS}
        client.put_schema(each["definition"], format=each["format"], if_match=restored.schemas, **fields)
        restored.schemas += 1


def _known_appends(client: "CommitlogClient", manifest: "BackupManifest", first: "pa.Table") -> int:
    """Append the first batch, and return how many the log has for certain."""
    from app.client.errors import Problem

    try:
        _append(client, manifest, 0, first, Restored())
    except Problem as problem:
        if problem.code != "sequence-gap" or not problem.document.get("expected_sequence"):
            raise
        return int(problem.document["expected_sequence"])
    return 1


def _append(
    client: "CommitlogClient", manifest: "BackupManifest", number: int, batch: "pa.Table", restored: Restored
) -> "Appended":
    """Append one batch where the one before it ended: no other record may be after that."""
    from app.client.errors import ConditionFailed

    try:
        return client.append_arrow(
            batch,
            producer_id=f"restore-{manifest.id}",
            producer_epoch=0,
            producer_sequence=number,
            match_index=restored.last_index + 1,
            timeout_ms=30_000,
        )
    except ConditionFailed as error:
        if error.code != "index-mismatch":
            raise
        raise CommandFailed(
            f"the log {client.log} has records that are not of this backup: name a new log with --log",
            ExitCode.CONDITION_FAILED,
        ) from error


def _verify(
    client: "CommitlogClient", folder: Path, manifest: "BackupManifest", restored: Restored
) -> dict[str, int]:
    """Read the new log and compare it with each file. Return the cursors in indexes of the new log.

    Raises CommandFailed where it differs.
    """
    from app.cli.backup.folder import Content, read_part

    moved: dict[str, int] = {}
    tail = client.tail()
    rest = _records(client, max(0, tail["begin_index"]), tail["committed_index"] + 1)
    waiting: list[pa.Table] = []
    for part in manifest.parts:
        table, waiting = _take(rest, waiting, part.records)
        if table.num_rows != part.records or Content().add(table).hexdigest() != part.content:
            raise CommandFailed(
                f"the records of the log {client.log} differ from {folder / part.file}; the log begins at "
                f"index {tail['begin_index']}: a log that has lost records by trims or retention differs"
            )
        old, new = read_part(folder, part).column("index").to_pylist(), table.column("index").to_pylist()
        for name, index in manifest.cursors.items():
            if name not in moved and index <= part.last_index:
                moved[name] = new[bisect_left(old, index)]
    extra = sum(table.num_rows for table in waiting) + sum(table.num_rows for table in rest)
    if extra:
        raise CommandFailed(f"the log {client.log} has {counted(extra)} that the backup lacks")
    return {name: moved.get(name, restored.last_index + 1) for name in manifest.cursors}


def _records(client: "CommitlogClient", begin: int, end: int) -> Iterator["pa.Table"]:
    if end > 0:
        for table, _, _ in client.arrow_pages(begin, until_index=end):
            yield table


def _take(
    source: Iterator["pa.Table"], waiting: list["pa.Table"], count: int
) -> tuple["pa.Table", list["pa.Table"]]:
    """Return the next `count` records, fewer at the end, and what was read beyond them."""
    import pyarrow as pa

    while sum(table.num_rows for table in waiting) < count and (table := next(source, None)) is not None:
        waiting.append(table)
    whole = pa.concat_tables(waiting) if waiting else pa.table({"index": pa.array([], pa.int64())})
    return whole.slice(0, count), [whole.slice(count)] if whole.num_rows > count else []


def _finish(client: "CommitlogClient", manifest: "BackupManifest", cursors: Mapping[str, int]) -> Any:
    """Create the cursors, and set the retention of the backup where the log has none; return it."""
    from app.client.errors import ConditionFailed
    from app.client.operations import Operations

    operations = Operations(client)
    for name, index in cursors.items():
        with suppress(ConditionFailed):  # a reader has moved it since an earlier restore
            operations.move_cursor(name, index, if_match="")
    found, wanted = operations.log(client.log).get("retention"), manifest.settings.get("retention")
    if wanted and not found:
        return operations.change_log(client.log, {"retention": wanted}).get("retention")
    return found
