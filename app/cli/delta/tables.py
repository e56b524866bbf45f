"""`commitlog tables`: the Delta tables of a log, as its nodes report them or as a folder contains them."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from click.core import ParameterSource
from rich.box import SIMPLE_HEAD
from rich.table import Table as View

from app.cli.context import Target, print_json, print_table, target_options
from app.cli.delta.text import count_cell, job_line
from app.cli.times import Time, format_time
from app.client.tables import Cut, Listing, MaterializedTable, Tables
from app.tables.names import ENTRIES

WAIT_MS = 30_000
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
        from app.cli.delta.folder import show_folder  # slow to import

        source = click.get_current_context().get_parameter_source("log")
        show_folder(tables, target.log if source in _GIVEN else None, as_json=target.as_json)
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
        click.echo(job_line(target.log, listing.job))


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
        cells = [
            *(count_cell(number) for number in numbers),
            committed,
            *([table.catalog_name or ""] * named),
        ]
        view.add_row(table.name, str(table.version), *cells)
    print_table(view)


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
