"""`commitlog completion`: completion scripts of shells, and the names of logs and nodes that they offer."""

from collections.abc import Sequence

import click

from app.cli.context import find_target, json_option, not_of_another_cluster, print_json

LOOK_UP_S = 1.0  # a shell waits for its user, so a cluster that is down costs at most this


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
def completion_command(shell: str, as_json: bool) -> None:
    """Print the completion script of a shell. It completes commands, options, and names of logs, nodes and
    contexts; for logs and nodes it asks the cluster.

    \b
    Examples:
      eval "$(commitlog completion bash)"            # in ~/.bashrc
      eval "$(commitlog completion zsh)"             # in ~/.zshrc
      commitlog completion fish > ~/.config/fish/completions/commitlog.fish
    """
    from click.shell_completion import get_completion_class

    from app.cli.main import cli

    of_shell = get_completion_class(shell)
    assert of_shell is not None
    source = of_shell(cli, {}, "commitlog", "_COMMITLOG_COMPLETE").source()
    if as_json:
        print_json({"shell": shell, "source": source})
    else:
        click.echo(source)


def names_of_logs(ctx: click.Context, incomplete: str) -> list[str]:
    """Return the logs that begin with `incomplete`."""
    return [name for name in _names(ctx, logs=True) if name.startswith(incomplete)]


def ids_of_nodes(ctx: click.Context, incomplete: str) -> list[str]:
    """Return the nodes that begin with `incomplete`."""
    return [name for name in _names(ctx, logs=False) if name.startswith(incomplete)]


def _names(ctx: click.Context, *, logs: bool) -> Sequence[str]:
    """Ask the cluster that the line names. A failure means no suggestions: it must not disturb the line."""
    from app.client import ClientError, CommitlogClient

    options = ctx.params
    try:
        endpoint, token = not_of_another_cluster(ctx, options.get("endpoint") or (), options.get("token"))
        target = find_target(endpoint, options.get("context"), None, token)
        with CommitlogClient(
            target.endpoints, token=target.token, give_up_s=LOOK_UP_S, waits_for_start=False
        ) as client:
            found = client.logs() if logs else client.cluster()["nodes"]
    except (ClientError, click.ClickException):
        return []
    return [str(each["name" if logs else "id"]) for each in found]
