"""`commitlog tables` and `commitlog materialize`: the Delta side of a log."""

import os
import sys
from pathlib import Path

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from app.cli.context import CommandFailed, ExitCode, Target, json_option, print_json, target_options
from app.cli.delta_folder import delta_tables
from app.cli.spark_job import JOB, job_arguments

MIB = 1024 * 1024
tables_option = click.option(
    "--tables",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("commitlog-data/tables"),
    envvar="COMMITLOG_TABLES",
    show_default=True,
    help="Folder of the Delta tables.",
)


@click.command("tables")
@tables_option
@json_option
def tables_command(tables: Path, as_json: bool) -> None:
    """List the Delta tables in a folder, as their transaction logs tell."""
    if not tables.is_dir():
        raise CommandFailed(f"{tables} is not there: name the folder by --tables", ExitCode.NOT_FOUND)
    found = delta_tables(tables)
    if as_json:
        documents = [
            {
                "name": table.name,
                "path": str(table.path),
                "version": table.version,
                "rows": table.rows,
                "files": table.files,
                "size_bytes": table.size_bytes,
            }
            for table in found
        ]
        print_json({"tables": documents})
        return
    view = Table("table", title=f"Delta tables in {tables}", title_justify="left", box=SIMPLE_HEAD)
    for name in ("version", "rows", "files", "MiB"):
        view.add_column(name, justify="right")
    for table in found:
        rows = "" if table.rows is None else f"{table.rows:,}"
        view.add_row(table.name, str(table.version), rows, str(table.files), f"{table.size_bytes / MIB:.1f}")
    Console().print(view)


@click.command("materialize")
@tables_option
@click.option(
    "--checkpoints",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("commitlog-data/checkpoints"),
    show_default=True,
    help="Folder in which Spark notes how far it is.",
)
@click.option("--once", is_flag=True, help="End when everything that is committed now is in the tables.")
@target_options
def materialize_command(target: Target, tables: Path, checkpoints: Path, once: bool) -> None:
    """Run the Spark job in the foreground: write a log into Delta tables until SIGTERM."""
    if target.token is not None:
        os.environ["COMMITLOG_TOKEN"] = target.token  # an argument would show in the list of processes
    arguments = job_arguments(target.endpoints, target.log, tables, checkpoints)
    if once:
        arguments.append("--available-now")
    command = [sys.executable, "-P", "-m", JOB, *arguments]
    os.execv(command[0], command)  # the job is this process from here on: signals and exit code are its own
