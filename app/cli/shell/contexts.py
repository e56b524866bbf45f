"""`commitlog context`: named clusters, so that commands need no --endpoint."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from app.cli.context import (
    CommandFailed,
    ExitCode,
    complete_contexts,
    json_option,
    print_json,
    print_table,
    split_endpoints,
)
from app.client import contexts
from app.client.contexts import ContextError, Contexts, NamedCluster


@click.group("context", invoke_without_command=True)
@json_option
@click.pass_context
def context_command(ctx: click.Context, as_json: bool) -> None:
    """List (the default), show, add, use and remove named clusters.

    A context keeps the endpoints of a cluster, and optionally a log and the file of a token. Commands use, in
    this order: --endpoint, --context, the context that `use` selected, the newest running `commitlog up`.
    `commitlog up` adds a context with the name of its folder, and removes it when it ends.

    \b
    Examples:
      commitlog context add prod -e https://n1.example:8101,https://n2.example:8101 --token-file ~/.prod-token
      commitlog context use prod
      commitlog status --context local
    """
    if ctx.invoked_subcommand is None:
        _list(as_json)


@context_command.command("list")
@json_option
def list_contexts(as_json: bool) -> None:
    """List the contexts.

    \b
    Examples:
      commitlog context list
    """
    _list(as_json)


@context_command.command("show")
@click.argument("name", required=False, shell_complete=complete_contexts)
@json_option
def show_context(name: str | None, as_json: bool) -> None:
    """Show one context. Default: the one in use.

    \b
    Examples:
      commitlog context show production
    """
    known = _load()
    name = name or known.in_use
    if name is None:
        raise CommandFailed(
            "no context is in use; `commitlog context use NAME` selects one", ExitCode.NOT_FOUND
        )
    found = _find(known, name)
    if as_json:
        print_json({"name": name, "current": name == known.in_use, **_document(found)})
        return
    click.echo(f"{name}{' (in use)' if name == known.in_use else ''}")
    for key, value in _document(found).items():
        click.echo(f"  {key}: {', '.join(value) if isinstance(value, list) else value or '-'}")


@context_command.command("add")
@click.argument("name")
@click.option("--endpoint", "-e", multiple=True, required=True, help="Base URL of a node; may be repeated.")
@click.option("--log", "-l", help="Log of commands without --log.")
@click.option(
    "--token-file", type=click.Path(exists=True, dir_okay=False), help="File whose first word is the token."
)
@json_option
def add_context(
    name: str, endpoint: tuple[str, ...], log: str | None, token_file: str | None, as_json: bool
) -> None:
    """Add a context, or replace the one of this name. The first one is used at once.

    \b
    Examples:
      commitlog context add production -e https://n1.example.com:8101 --token-file token.txt
    """
    if not name.isprintable() or not name or name.startswith("-"):
        raise click.BadParameter(f"must be printable and not begin with -, got {name!r}", param_hint="NAME")
    urls = split_endpoints(endpoint, learned=False)
    kept = None if token_file is None else str(Path(token_file).absolute())  # used from any folder
    with _changing() as known:
        done = "replaced" if name in known.contexts else "added"
        known.contexts[name] = NamedCluster(urls, log, kept)
        known.current = known.current or name
    _report(known, name, f"context {name} is {done}", as_json)


@context_command.command("use")
@click.argument("name", required=False, shell_complete=complete_contexts)
@click.option("--none", is_flag=True, help="Use no context: the cluster of `commitlog up`.")
@json_option
def use_context(name: str | None, none: bool, as_json: bool) -> None:
    """Let commands without --endpoint use this context.

    \b
    Examples:
      commitlog context use production
    """
    if none == (name is not None):
        raise click.UsageError("either NAME or --none is required")
    with _changing() as known:
        if name is not None:
            _find(known, name)
        known.current = name
    _report(known, name, f"context {name} is in use" if name else "no context is in use", as_json)


@context_command.command("remove")
@click.argument("name", shell_complete=complete_contexts)
@json_option
def remove_context(name: str, as_json: bool) -> None:
    """Remove a context.

    \b
    Examples:
      commitlog context remove production
    """
    with _changing() as known:
        _find(known, name)
        contexts.remove(known, name)
    _report(known, name, f"context {name} is removed", as_json)


def _load() -> Contexts:
    try:
        return contexts.load()
    except ContextError as error:
        raise CommandFailed(str(error)) from None


@contextmanager
def _changing() -> Iterator[Contexts]:
    try:
        with contexts.changing() as known:
            yield known
    except ContextError as error:
        raise CommandFailed(str(error)) from None


def _find(known: Contexts, name: str) -> NamedCluster:
    if name not in known.contexts:
        names = ", ".join(known.contexts) or "none"
        raise CommandFailed(
            f"the context {name!r} does not exist; known contexts: {names}", ExitCode.NOT_FOUND
        )
    return known.contexts[name]


def _document(found: NamedCluster) -> dict[str, object]:
    return {"endpoints": found.endpoints, "log": found.log, "token_file": found.token_file}


def _report(known: Contexts, name: str | None, sentence: str, as_json: bool) -> None:
    if as_json:
        print_json({"name": name, "current": known.current})
    else:
        click.echo(sentence)


def _list(as_json: bool) -> None:
    known = _load()
    if as_json:
        documents = [{"name": name, **_document(found)} for name, found in known.contexts.items()]
        print_json({"current": known.in_use, "contexts": documents})
        return
    if not known.contexts:
        click.echo("no context is known; `commitlog context add NAME --endpoint URL` adds one")
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table("in use", "context", "endpoints", "log", "token file", box=SIMPLE_HEAD)
    for name, found in known.contexts.items():
        mark = "*" if name == known.in_use else ""
        table.add_row(mark, name, ", ".join(found.endpoints), found.log or "", found.token_file or "")
    print_table(table)
