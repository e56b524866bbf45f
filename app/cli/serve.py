"""`commitlog serve`: one node in the foreground."""

import os
import sys
from pathlib import Path

import click

from app.cli.context import CommandFailed, ExitCode, json_option, print_json


@click.command("serve")
@click.option(
    "--config",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Configuration file of the cluster (TOML; see conf/).",
)
@click.option("--node", required=True, help="Id of the node that this process runs, for example n1.")
@json_option
def serve_command(config: Path, node: str, as_json: bool) -> None:
    """Run one node in the foreground until SIGTERM.

    Log lines are written to standard error. With --json, one line on standard output reports that the node
    serves; if it cannot start, a problem document on standard error reports the reason. Exit codes: 0 clean
    stop, 2 invalid configuration, 1 any other error.

    \b
    Examples:
      commitlog serve --config conf/one_node.toml --node n1
    """
    from app.serve import serve  # the whole service: loaded only here
    from app.settings.model import Settings

    def report_ready(settings: Settings) -> None:
        here = settings.node
        print_json({"ready": True, "node": here.id, "url": here.url, "pid": os.getpid()})

    if not as_json:
        sys.exit(serve(config, node))
    reasons: list[str] = []
    code = serve(config, node, report_ready, reasons.append)
    if reasons:
        raise CommandFailed(reasons[0], ExitCode(code))
    sys.exit(code)
