"""`commitlog verify`: compare the replicas of a log, or the log with its Delta table."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from app.cli.context import (
    CommandFailed,
    ExitCode,
    Target,
    person_watches,
    print_json,
    print_table,
    target_options,
)
from app.client.operations import Operations
from app.local.spark_job import VERIFY_JOB, become_job, job_arguments


@click.command("verify")
@click.option(
    "--from", "from_index", type=click.IntRange(0), help="First index. Default: the beginning of the log."
)
@click.option(
    "--until", "until_index", type=click.IntRange(0), help="End index, exclusive. Default: all committed."
)
@click.option("--deep", is_flag=True, help="Reread all data from disk and recompute all hash chains.")
@click.option("--tables", is_flag=True, help="Compare the log with its Delta table `entries` by a Spark job.")
@target_options
def verify_command(
    target: Target, from_index: int | None, until_index: int | None, deep: bool, tables: bool
) -> None:
    """Compare all replicas of a log, batch by batch; or the log with its table.

    Exit codes: 0 all are equal, 1 one differs or is damaged, 5 one could not be compared.

    \b
    Examples:
      commitlog verify --log orders
      commitlog verify --from 1000 --until 2000 --deep --json
      commitlog verify --tables
    """
    if tables:
        if deep or from_index is not None or until_index is not None:
            raise click.UsageError("--from, --until and --deep cannot be used with --tables")
        _become_verify_job(target)
    batches, size_bytes = 0, 0
    begins: dict[str, int] = {}  # first index compared of each replica
    with target.client() as client:
        end = client.tail()["committed_index"] + 1 if until_index is None else until_index
        with Progress(console=Console(stderr=True), disable=not person_watches()) as progress:
            task = progress.add_task(f"verifying {target.log}", total=max(0, end - (from_index or 0)))
            first = from_index
            while True:
                result = Operations(client).verify(first, until_index, deep=deep)
                batches, size_bytes = batches + result["batches"], size_bytes + result["bytes"]
                begins = {**first_compared(result), **begins}
                progress.update(task, completed=result["until_index"] - (from_index or 0))
                if not (result["has_more"] and result["equal"] and result["complete"]):
                    break
                first = result["until_index"]
    result |= {"batches": batches, "bytes": size_bytes}
    if begins:
        result["from_index"] = min(begins.values())
    for replica in result["replicas"]:
        if replica["node"] in begins:
            replica["from_index"] = begins[replica["node"]]
    if target.as_json:
        print_json(result)
    else:
        print_table(verify_table(result))
        click.echo(verdict(result))
    if not result["equal"]:
        raise CommandFailed(verdict(result), ExitCode.FAILED)
    if not result["complete"]:
        raise CommandFailed("at least one replica could not be compared", ExitCode.UNAVAILABLE)


def _become_verify_job(target: Target) -> NoReturn:
    """Compare the log with its table `entries`: the Spark job replaces this process."""
    arguments = job_arguments(target.endpoints_of_job(), target.log)
    arguments += ["--give-up-s", str(target.give_up_s)]
    if target.as_json:
        arguments.append("--json")
    become_job(VERIFY_JOB, arguments, target.token)


def first_compared(result: Mapping[str, Any]) -> dict[str, int]:
    """Return the first index that was compared of each replica, if one was; nodes of earlier versions do not
    report it."""
    return {
        replica["node"]: replica["from_index"]
        for replica in result["replicas"]
        if replica.get("from_index", replica["until_index"]) < replica["until_index"]
    }


def verify_table(result: Mapping[str, Any]) -> Table:
    """Return a table with one row per replica."""
    table = Table(title=f"log {result['log']}", title_justify="left", box=SIMPLE_HEAD)
    for name in ("replica", "state"):
        table.add_column(name)
    for name in ("compared up to index", "first difference"):
        table.add_column(name, justify="right")
    for replica in result["replicas"]:
        difference = replica["first_difference"]
        table.add_row(
            replica["node"],
            replica["state"],
            f"{replica['until_index'] - 1:,}" if replica["until_index"] else "",
            "" if difference is None else f"{difference:,}",
        )
    return table


def verdict(result: Mapping[str, Any]) -> str:
    """Return the outcome in one line."""
    if result["first_difference"] is not None:
        sides = " against ".join(", ".join(group) for group in result["groups"])
        return f"the replicas differ from index {result['first_difference']} on: {sides}"
    damaged = [replica["node"] for replica in result["replicas"] if replica["state"] == "damaged"]
    if damaged:
        return f"damaged and under repair: {', '.join(damaged)}"
    begins = first_compared(result)
    same = [replica for replica in result["replicas"] if replica["state"] == "same"]
    left_out = [
        replica["node"]
        for replica in same
        if begins and replica["node"] not in begins and "from_index" in replica
    ]
    compared = [replica["node"] for replica in same if replica["node"] not in left_out]
    size = f"{result['batches']:,} batches, {result['bytes']:,} bytes"
    held = f"{', '.join(compared)} hold the same {size},"
    if len(compared) < 2:
        held = f"no two replicas were compared: {', '.join(compared) or 'none'} holds {size},"
    first = min(begins.values(), default=0)
    start = f"from index {first:,} " if first else ""
    later = _later_beginnings(begins, compared, left_out)
    return f"{held} {start}up to index {result['until_index'] - 1:,}{later}"


def _later_beginnings(begins: Mapping[str, int], compared: Sequence[str], left_out: Sequence[str]) -> str:
    """Return which replicas begin later than the first record that was compared."""
    first = min(begins.values(), default=0)
    later = [f"; {node} begins later: nothing of it was compared" for node in left_out]
    later += [
        f"; {node} begins later, at index {begin:,}"
        for node, begin in begins.items()
        if node in compared and begin > first
    ]
    return "".join(later)
