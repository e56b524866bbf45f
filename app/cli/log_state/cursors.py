"""`commitlog cursors`: positions of readers, kept in the log."""

import re

import click
from rich.box import SIMPLE_HEAD
from rich.table import Table

from app.cli.context import (
    CommandFailed,
    ExitCode,
    Target,
    a_cursor_name,
    print_json,
    print_table,
    printable,
    target_options,
)
from app.client.operations import Cursor, Operations

_VERSION = re.compile(r'(W/)?"?(\d+)"?')


@click.group("cursors", invoke_without_command=True)
@target_options
@click.pass_context
def cursors_command(ctx: click.Context, target: Target) -> None:
    """List (the default), show, set and delete the cursors of a log.

    A cursor is the next index that a reader reads. With a fence, retention and trims keep all records from
    it on.

    \b
    Examples:
      commitlog cursors list --log orders
      commitlog cursors set etl 1000 --log orders
      commitlog read --cursor etl --log orders
      commitlog cursors set etl 2000 --if-match 17 --log orders
    """
    if ctx.invoked_subcommand is None:
        _list(target)


@cursors_command.command("list")
@target_options
def list_cursors(target: Target) -> None:
    """List the cursors of a log with their versions.

    Cursors of the service (`__...`) are listed too.

    \b
    Examples:
      commitlog cursors list --log orders
    """
    _list(target)


def _list(target: Target) -> None:
    with target.client() as client:
        found = Operations(client).cursors()
    if target.as_json:
        print_json({"cursors": [_document(target, cursor) for cursor in found]})
        return
    if not found:
        click.echo(f"log {target.log} has no cursors")
        return
    view = Table("cursor", title=f"Cursors of {target.log}", title_justify="left", box=SIMPLE_HEAD)
    view.add_column("next index", justify="right")
    view.add_column("fence")
    view.add_column("version", justify="right")
    view.add_column("holder")
    for cursor in found:
        fence = "yes" if cursor.fence else "no"
        holder = printable(cursor.holder or "")
        view.add_row(cursor.name, f"{cursor.index:,}", fence, cursor.version.strip('"'), holder)
    print_table(view)


@cursors_command.command("show")
@click.argument("name", callback=a_cursor_name)
@target_options
def show_cursor(target: Target, name: str) -> None:
    """Show one cursor and its version.

    \b
    Examples:
      commitlog cursors show billing --json
    """
    with target.client() as client:
        found = Operations(client).cursor(name)
    _show(target, found)


@cursors_command.command("set")
@click.argument("name", callback=a_cursor_name)
@click.argument("index", type=click.IntRange(0))
@click.option(
    "--fence", is_flag=True, help="Keep the records from INDEX on, in spite of retention and trims."
)
@click.option("--if-match", metavar="VERSION", help="Only if this is the version of the cursor.")
@click.option("--create", is_flag=True, help="Only if the cursor does not exist.")
@target_options
def set_cursor(
    target: Target, name: str, index: int, fence: bool, if_match: str | None, create: bool
) -> None:
    """Create a cursor or move it to INDEX, the next index to read.

    \b
    Examples:
      commitlog cursors set billing 1000 --fence --log orders
      commitlog cursors set billing 1200 --if-match 7
    """
    if create and if_match is not None:
        raise click.UsageError("--create and --if-match cannot be used together")
    with target.client(writes=True) as client:
        wanted = "" if create else _version(if_match)
        moved = Operations(client).move_cursor(name, index, fence=fence, if_match=wanted)
    _show(target, moved)


@cursors_command.command("delete")
@click.argument("name", callback=a_cursor_name)
@click.option("--if-match", metavar="VERSION", help="Only if this is the version of the cursor.")
@target_options
def delete_cursor(target: Target, name: str, if_match: str | None) -> None:
    """Delete a cursor. Its fence no longer keeps records.

    \b
    Examples:
      commitlog cursors delete billing --log orders
    """
    with target.client(writes=True) as client:
        dropped = Operations(client).drop_cursor(name, if_match=_version(if_match))
    if target.as_json:
        _show(target, dropped)
    else:
        click.echo(f"cursor {name} is deleted; it was at index {dropped.index}")


def _version(given: str | None) -> str | None:
    """Return the ETag of a version, which may be given without quotes."""
    if given is None:
        return None
    found = _VERSION.fullmatch(given)
    if found is None:
        raise CommandFailed(f"--if-match must be the version of a cursor, got {given!r}", ExitCode.USAGE)
    return f'"{found[2]}"'


def _document(target: Target, found: Cursor) -> dict[str, str | int | bool]:
    return {
        "log": target.log,
        "name": found.name,
        "index": found.index,
        "fence": found.fence,
        "version": found.version.strip('"'),
        **({} if found.holder is None else {"holder": found.holder}),
    }


def _show(target: Target, found: Cursor) -> None:
    document = _document(target, found)
    if target.as_json:
        print_json(document)
        return
    fence = "with a fence" if found.fence else "no fence"
    holder = "" if found.holder is None else f", moved by {printable(found.holder)}"
    click.echo(f"{found.name}: next index {found.index}, {fence}, version {document['version']}{holder}")
