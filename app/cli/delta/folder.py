"""The Delta tables below a folder, from their own Delta logs: no node is called."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from msgspec import structs
from rich.box import SIMPLE_HEAD
from rich.table import Table as View

from app.cli.context import CommandFailed, ExitCode, print_json, print_table
from app.cli.delta.text import count_cell, job_line, needs_attention
from app.tables.catalog import catalog_names
from app.tables.delta_log import LOG_FOLDER, DeltaLog, DeltaLogError, DeltaSnapshot
from app.tables.job_reports import JobReport, job_reports
from storage.units import MIB

_DEPTH: Final = 2  # TABLES/LOG/TABLE


class FolderTable(NamedTuple):
    """name: its path below the folder. catalog_name: None without a catalog."""

    name: str
    snapshot: DeltaSnapshot
    catalog_name: str | None

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "path": self.snapshot.path,
            "version": self.snapshot.version,
            "rows": self.snapshot.rows,
            "files": len(self.snapshot.files),
            "size_bytes": self.snapshot.size_bytes,
            "catalog_name": self.catalog_name,
        }


def show_folder(root: Path, log: str | None, *, as_json: bool) -> None:
    """Print the tables below `root` and the last reports of their jobs. log: None for those of all logs.

    Raises CommandFailed if there is no such folder, no table of `log`, or a Delta log that cannot be read.
    """
    paths = _table_paths(root, log)
    folders = sorted({path.parent for path in paths})
    try:
        tables = _tables(root, paths, folders)
    except DeltaLogError as error:
        raise CommandFailed(str(error)) from error
    jobs = _jobs(folders)
    if as_json:
        documents = [table.document() for table in tables]
        print_json({"tables": documents, "jobs": {name: structs.asdict(job) for name, job in jobs.items()}})
    elif tables:
        _show(root, tables, jobs)
    else:
        click.echo(f"{root} contains no Delta tables; they are in its folders LOG/TABLE")


def _table_paths(root: Path, log: str | None) -> list[Path]:
    if not root.is_dir():
        raise CommandFailed(f"{root} does not exist; set the folder with --tables", ExitCode.NOT_FOUND)
    logs = (found for depth in range(_DEPTH + 1) for found in root.glob("*/" * depth + LOG_FOLDER))
    paths = sorted(found.parent for found in logs)
    if log is None:
        return paths
    own = [path for path in paths if path.absolute().parent.name == log]
    if not own:
        raise CommandFailed(f"{root} contains no Delta tables of log {log}", ExitCode.NOT_FOUND)
    return own


def _tables(root: Path, paths: Sequence[Path], folders: Sequence[Path]) -> list[FolderTable]:
    """Return those that have a version. Raises DeltaLogError."""
    names = {folder: catalog_names(str(folder)) for folder in folders}
    snapshots = [(path, DeltaLog(str(path)).snapshot()) for path in paths]
    return [
        FolderTable(str(path.relative_to(root)), snapshot, names[path.parent].get(path.name))
        for path, snapshot in snapshots
        if snapshot is not None
    ]


def _jobs(folders: Sequence[Path]) -> dict[str, JobReport]:
    """Return the last report about each log, by name."""
    reports = {root: job_reports(str(root)) for root in {folder.parent for folder in folders}}
    found = ((folder.name, reports[folder.parent].get(folder.name)) for folder in folders)
    return {name: report for name, report in found if report is not None}


def _show(root: Path, tables: Sequence[FolderTable], jobs: Mapping[str, JobReport]) -> None:
    view = View("table", title=f"Delta tables in {root}", title_justify="left", box=SIMPLE_HEAD)
    for name in ("version", "rows", "files", "MiB"):
        view.add_column(name, justify="right")
    named = any(table.catalog_name for table in tables)
    if named:
        view.add_column("name in the catalog")
    for name, snapshot, catalog_name in tables:
        size = f"{snapshot.size_bytes / MIB:.1f}"
        cells = [str(snapshot.version), count_cell(snapshot.rows), str(len(snapshot.files)), size]
        view.add_row(name, *cells, *([catalog_name or ""] * named))
    print_table(view)
    for name, job in jobs.items():
        if needs_attention(job):
            click.echo(job_line(name, job))
