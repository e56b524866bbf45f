"""`commitlog tables` and `commitlog materialize`: the Delta tables of a log."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource
from msgspec import structs
from rich.box import SIMPLE_HEAD
from rich.table import Table as View

from app.cli.context import (
    CommandFailed,
    ExitCode,
    Target,
    print_json,
    print_table,
    printable,
    target_options,
)
from app.cli.delta.job_options import spark_conf_option, tables_option
from app.cli.times import Time, format_time
from app.client.tables import Cut, Listing, MaterializedTable, Tables, TablesJob
from app.local.spark_job import DEFAULT_TABLES, JOB, become_job, job_arguments
from app.tables.names import ENTRIES, FAILED, is_silent
from storage.units import MIB

if TYPE_CHECKING:
    from app.tables.job_reports import JobReport

DEFAULT_CHECKPOINTS = Path("commitlog-data/checkpoints")
WAIT_MS = 30_000
DEPTH = 2  # TABLES/LOG/TABLE
_GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
folder = click.Path(file_okay=False, path_type=Path)


@click.command("tables")
@click.option(
    "--wait", type=click.IntRange(0), metavar="INDEX", help="Wait until this record is in the table."
)
@click.option("--table", help=f"Name of the table of --wait. Default: {ENTRIES}.")
@click.option("--timeout-ms", type=click.IntRange(0), help=f"Time limit of --wait, ms. Default: {WAIT_MS}.")
@click.option("--at-index", type=click.IntRange(0), help="Show the table versions at this index.")
@click.option(
    "--at-timestamp", type=Time(), help="Show the table versions at this time: ISO 8601, ms, or an age (15m)."
)
@click.option("--at-epoch", type=click.IntRange(0), help="Show the table versions at the end of this epoch.")
@click.option(
    "--tables",
    type=folder,
    help="Read this folder of tables, of all logs or of --log; no node is called.",
)
@target_options
def tables_command(
    target: Target,
    wait: int | None,
    table: str | None,
    timeout_ms: int | None,
    at_index: int | None,
    at_timestamp: int | None,
    at_epoch: int | None,
    tables: Path | None,
) -> None:
    """Show the Delta tables of a log: their versions and their lag.

    \b
    Examples:
      commitlog tables --log orders
      commitlog tables --wait 4999
      commitlog tables --at-timestamp 2026-01-31T08:00+01:00
    """
    points = {"index": at_index, "timestamp": at_timestamp, "epoch": at_epoch}
    point = {name: value for name, value in points.items() if value is not None}
    if len(point) + (wait is not None) + (tables is not None) > 1:
        raise click.UsageError("--wait, --at-… and --tables cannot be used together")
    if wait is None and (table is not None or timeout_ms is not None):
        raise click.UsageError("--table and --timeout-ms require --wait")
    if tables is not None:
        source = click.get_current_context().get_parameter_source("log")
        _show_folder(tables, target.log if source in _GIVEN else None, target.as_json)
        return
    with target.client() as client:
        known = Tables(client)
        if point:
            _show_cut(known.at(**point), target.as_json)
        elif wait is not None:
            limit_ms = WAIT_MS if timeout_ms is None else timeout_ms
            found = known.wait(wait, table=table or ENTRIES, timeout_ms=limit_ms)
            if target.as_json:
                print_json({"tables": [asdict(found)]})
            else:
                _show_tables([found], target.log)
        else:
            _show_listing(known.listing(), target)


def _show_listing(listing: Listing, target: Target) -> None:
    if target.as_json:
        job = None if listing.job is None else asdict(listing.job)
        print_json({"tables": [asdict(table) for table in listing.tables], "job": job})
        return
    if listing.tables:
        _show_tables(listing.tables, target.log)
    elif listing.job is None:
        click.echo(
            f"log {target.log} has no Delta tables at the nodes. A Spark job that has just started "
            "(`commitlog up`, `commitlog materialize`) makes them within a minute. If none runs, start one; "
            "[tables] path of the nodes' configuration names its folder."
        )
    else:
        click.echo(f"log {target.log} has no Delta tables yet")
    if listing.job is not None:
        click.echo(_job_line(target.log, listing.job))


def _job_line(log: str, job: "TablesJob | JobReport") -> str:
    """Return the last report of the job of a log for people."""
    reported, now_ms = f"reported {format_time(job.updated_ms)}", _now_ms()
    if is_silent(job.state, job.updated_ms, now_ms):
        age_s = (now_ms - job.updated_ms) // 1_000
        return (
            f"The Spark job of {log} has not reported for {age_s:,} s, since {format_time(job.updated_ms)}, "
            "when it was running: check that its process runs, and that the disk of the tables has space"
        )
    if job.state != FAILED:
        return f"Spark job of {log}: {printable(job.state)}, {reported}"
    when = f"({reported})" if job.failed_ms is None else f"since {format_time(job.failed_ms)}"
    reason = "the lines that it printed have the reason" if job.error is None else printable(job.error)
    return f"The Spark job of {log} has failed {when}: {reason}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _show_tables(tables: Sequence[MaterializedTable], log: str) -> None:
    view = View("table", title=f"Delta tables of {log}", title_justify="left", box=SIMPLE_HEAD)
    for name in ("version", "through index", "lag (records)", "lag (ms)"):
        view.add_column(name, justify="right")
    view.add_column("last commit")
    named = any(table.catalog_name for table in tables)
    if named:
        view.add_column("name in the catalog")
    for table in tables:
        numbers = (table.materialized_index, table.lag_records, table.lag_ms)
        committed = "" if table.committed_ms is None else format_time(table.committed_ms)
        cells = [*(_number(number) for number in numbers), committed, *([table.catalog_name or ""] * named)]
        view.add_row(table.name, str(table.version), *cells)
    print_table(view)


def _number(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _show_cut(cut: Cut, as_json: bool) -> None:
    if as_json:
        print_json({"index": cut.index, "tables": dict(cut.versions), "exact": cut.exact})
        return
    title = f"Versions at index {cut.index:,}"
    if not cut.exact:
        title += " (entries: and later versions)"
    view = View("table", title=title, title_justify="left", box=SIMPLE_HEAD)
    view.add_column("version", justify="right")
    for name, version in cut.versions.items():
        view.add_row(name, str(version))
    print_table(view)


def _show_folder(root: Path, log: str | None, as_json: bool) -> None:
    """Show the tables below a folder, from their own Delta logs. log: None for those of all logs."""
    from app.tables.catalog import catalog_names
    from app.tables.delta_log import LOG_FOLDER, DeltaLog, DeltaLogError
    from app.tables.job_reports import job_reports

    if not root.is_dir():
        raise CommandFailed(f"{root} does not exist; set the folder with --tables", ExitCode.NOT_FOUND)
    paths = sorted(path.parent for depth in range(DEPTH + 1) for path in root.glob("*/" * depth + LOG_FOLDER))
    if log is not None:
        paths = [path for path in paths if path.absolute().parent.name == log]
        if not paths:
            raise CommandFailed(f"{root} contains no Delta tables of log {log}", ExitCode.NOT_FOUND)
    try:
        snapshots = [(path, DeltaLog(str(path)).snapshot()) for path in paths]
        names = {folder: catalog_names(str(folder)) for folder in {path.parent for path in paths}}
    except DeltaLogError as error:
        raise CommandFailed(str(error)) from error
    found = [
        (str(path.relative_to(root)), snapshot, names[path.parent].get(path.name))
        for path, snapshot in snapshots
        if snapshot is not None
    ]
    reports = {parent: job_reports(str(parent)) for parent in {folder.parent for folder in names}}
    jobs = {
        each.name: reports[each.parent][each.name]
        for each in sorted(names)
        if each.name in reports[each.parent]
    }
    if as_json:
        documents = [
            {
                "name": name,
                "path": snapshot.path,
                "version": snapshot.version,
                "rows": snapshot.rows,
                "files": len(snapshot.files),
                "size_bytes": snapshot.size_bytes,
                "catalog_name": catalog_name,
            }
            for name, snapshot, catalog_name in found
        ]
        print_json({"tables": documents, "jobs": {name: structs.asdict(job) for name, job in jobs.items()}})
        return
    if not found:
        click.echo(f"{root} contains no Delta tables; they are in its folders LOG/TABLE")
        return
    view = View("table", title=f"Delta tables in {root}", title_justify="left", box=SIMPLE_HEAD)
    for name in ("version", "rows", "files", "MiB"):
        view.add_column(name, justify="right")
    named = any(catalog_name for _, _, catalog_name in found)
    if named:
        view.add_column("name in the catalog")
    for name, snapshot, catalog_name in found:
        size = f"{snapshot.size_bytes / MIB:.1f}"
        cells = [str(snapshot.version), _number(snapshot.rows), str(len(snapshot.files)), size]
        view.add_row(name, *cells, *([catalog_name or ""] * named))
    print_table(view)
    for name, job in jobs.items():
        if job.state == FAILED or is_silent(job.state, job.updated_ms, _now_ms()):
            click.echo(_job_line(name, job))


@click.command("materialize")
@tables_option
@click.option(
    "--checkpoints",
    help="Folder for scratch files of the streaming query, of which --once has none; the tables alone record "
    f"the progress.  [default: {DEFAULT_CHECKPOINTS}]",
)
@spark_conf_option
@click.option(
    "--catalog",
    metavar="NAME",
    help="CATALOG or CATALOG.SCHEMA of Spark in which the tables get names as well.",
)
@click.option("--once", is_flag=True, help="Stop when all records committed so far are in the tables.")
@target_options
def materialize_command(
    target: Target,
    tables: str | None,
    checkpoints: str | None,
    spark_conf: Path | None,
    catalog: str | None,
    once: bool,
) -> None:
    """Run the Spark job that writes logs to Delta tables, in the foreground, until SIGTERM.

    --log may also be several names and patterns, separated by commas: a log that is created later and
    matches is written too.

    --give-up-s applies while no node answers. A job at its start, and one with --once, then ends with an
    error; a running job tries again until a node answers.

    \b
    Examples:
      commitlog materialize --once --tables commitlog-data/tables --log orders
      commitlog materialize --log '*'
      commitlog materialize --spark-conf conf/spark.toml
      commitlog materialize --catalog orders_cat.stream
    """
    if spark_conf is None:
        tables, checkpoints = tables or str(DEFAULT_TABLES), checkpoints or str(DEFAULT_CHECKPOINTS)
    arguments = job_arguments(target.endpoints_of_job(), target.log, tables, checkpoints)
    if spark_conf is not None:
        arguments += ["--conf", str(spark_conf)]
    arguments += ["--give-up-s", str(target.give_up_s)]
    if catalog is not None:
        arguments += ["--catalog", catalog]
    if once:
        arguments.append("--available-now")
    if target.as_json:
        arguments.append("--json")
    become_job(JOB, arguments, target.token)
