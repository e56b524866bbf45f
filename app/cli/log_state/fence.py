"""`commitlog fence`: the token that every append to a log needs."""

import click

from app.cli.context import Target, json_option, print_json, target_options
from app.client.operations import Operations


@click.group("fence")
@json_option
def fence_command(as_json: bool) -> None:
    """Set or remove the fencing token of a log.

    With a token set, an append without it, or with another one, is refused (exit code 3). The token of a log
    cannot be read.

    \b
    Examples:
      commitlog fence set writer-b --match-token writer-a --log orders
      commitlog append hello --fencing-token writer-b --log orders
      commitlog fence remove --log orders
    """


def _conditions(match_token: str | None, unset: bool) -> dict[str, str | None]:
    if unset and match_token is not None:
        raise click.UsageError("--match-token and --match-none cannot be used together")
    return {"match_token": match_token} if unset or match_token is not None else {}


@fence_command.command("set")
@click.argument("fencing_token")
@click.option("--match-token", help="Only if this token is set now.")
@click.option("--match-none", is_flag=True, help="Only if no token is set now.")
@target_options
def set_fence(target: Target, fencing_token: str, match_token: str | None, match_none: bool) -> None:
    """Let the log accept only appends with FENCING_TOKEN.

    \b
    Examples:
      commitlog fence set writer-2 --match-token writer-1 --log orders
    """
    conditions = _conditions(match_token, match_none)
    with target.client(writes=True) as client:
        done = Operations(client).set_fence(fencing_token, **conditions)
    if target.as_json:
        print_json(done)
    else:
        click.echo(f"appends to {target.log} need the token {fencing_token}, from index {done['index']} on")


@fence_command.command("remove")
@click.option("--match-token", help="Only if this token is set now.")
@target_options
def remove_fence(target: Target, match_token: str | None) -> None:
    """Let the log accept appends without a token.

    \b
    Examples:
      commitlog fence remove --log orders
    """
    with target.client(writes=True) as client:
        done = Operations(client).set_fence(None, **_conditions(match_token, False))
    if target.as_json:
        print_json(done)
    else:
        click.echo(f"appends to {target.log} need no token, from index {done['index']} on")
