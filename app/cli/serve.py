"""`commitlog serve`: one node in the foreground."""

import os
import sys
from pathlib import Path

import click

from app.cli.context import json_option, print_json


@click.command("serve")
@click.option(
    "--config",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Configuration of the cluster (TOML; see conf/).",
)
@click.option("--node", required=True, help="Which of its nodes this process is, for example n1.")
@json_option
def serve_command(config: Path, node: str, as_json: bool) -> None:
    """Run one node in the foreground; SIGTERM is a clean stop.

    Log lines go to standard error; with --json one line tells on standard output when the node serves. Exit
    codes: 0 a clean stop, 2 a wrong configuration, 1 anything else.
    """
    from app.serve import serve  # the whole service: loaded only here
    from app.settings.model import Settings

    def tell(settings: Settings) -> None:
        if as_json:
            here = settings.node
            print_json({"ready": True, "node": here.id, "url": here.url, "pid": os.getpid()})

    sys.exit(serve(config, node, tell))
