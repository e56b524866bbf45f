"""`commitlog serve`: one node in the foreground."""

import sys
from pathlib import Path

import click


@click.command("serve")
@click.option(
    "--config",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Configuration of the cluster (TOML; see conf/).",
)
@click.option("--node", required=True, help="Which of its nodes this process is, for example n1.")
def serve_command(config: Path, node: str) -> None:
    """Run one node in the foreground; SIGTERM is a clean stop.

    Log lines go to standard error. Exit codes: 0 a clean stop, 2 a wrong configuration, 1 anything else.
    """
    from app.node.server import serve  # the whole service: loaded only here

    sys.exit(serve(config, node))
