"""`commitlog token`: make tokens, and lines of a tokens file that hold their hashes."""

import sys
from typing import Any

import click

from app.api.access.caller import Scope
from app.api.access.token_lines import hash_line, new_token
from app.cli.context import json_option, print_json
from app.errors import ConfigError


@click.group("token")
@json_option
def token_command(as_json: bool) -> None:
    """Create tokens for the tokens file of the nodes.

    The file holds a hash of each token. Nodes read it again when it changes.

    \b
    Examples:
      commitlog token new --scope append --logs 'orders.*' --name shop
    """


def _line_options(command: click.decorators.FC) -> click.decorators.FC:
    for option in (
        json_option,
        click.option("--in-flight", type=click.IntRange(1), help="Limit of requests in progress at a node."),
        click.option("--rate", type=click.IntRange(1), help="Limit of requests per second at a node."),
        click.option("--name", help="Name of the caller in logs and in the audit log."),
        click.option(
            "--logs",
            multiple=True,
            help="Log, or prefix with a trailing *; may be repeated. Default: all.",
        ),
        click.option(
            "--scope",
            "scopes",
            multiple=True,
            required=True,
            type=click.Choice([*(scope.value for scope in Scope), "write"]),
            help="Right of the token; may be repeated. `write`: all of them.",
        ),
    ):
        command = option(command)
    return command


@token_command.command("new")
@_line_options
def new(as_json: bool, **rights: Any) -> None:
    """Print a new random token, and the line for the tokens file.

    The token is not stored: it cannot be shown again.

    \b
    Examples:
      commitlog token new --scope append --logs 'orders.*' --name shop
    """
    token = new_token()
    line = _line(token, **rights)
    if as_json:
        print_json({"token": token, "line": line})
    else:
        click.echo(token)
        click.echo(line)


@token_command.command("hash")
@_line_options
def hash_of(as_json: bool, **rights: Any) -> None:
    """Print the line of an existing token for the tokens file.

    The token is read from standard input.

    \b
    Examples:
      commitlog token hash --scope read < token.txt
    """
    token = sys.stdin.readline().strip()
    rest = "" if sys.stdin.isatty() else sys.stdin.read().strip()
    if len(token.split()) != 1 or rest:
        raise click.UsageError("standard input must hold one token without blanks")
    line = _line(token, **rights)
    if as_json:
        print_json({"line": line})
    else:
        click.echo(line)


def _line(
    token: str,
    scopes: tuple[str, ...],
    logs: tuple[str, ...],
    name: str | None,
    rate: int | None,
    in_flight: int | None,
) -> str:
    options = {
        "logs": ",".join(log for text in logs for log in text.split(",")) or None,
        "name": name,
        "rate": rate,
        "in_flight": in_flight,
    }
    words = [f"{key}={value}" for key, value in options.items() if value is not None]
    if any(len(word.split()) != 1 or "#" in word for word in words):
        raise click.UsageError("--logs and --name may not contain blanks or #")
    try:
        return hash_line(token, (*dict.fromkeys(scopes), *words))
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
