"""`commitlog`: entry point of all commands. A command's module is imported when the command is used."""

import importlib
import os
import sys

import click

from app.version import VERSION

COMMANDS = {
    "up": "app.cli.up",
    "serve": "app.cli.serve",
    "demo": "app.cli.demo",
    "status": "app.cli.status",
    "append": "app.cli.append",
    "read": "app.cli.read",
    "tail": "app.cli.read",
    "logs": "app.cli.logs",
    "epochs": "app.cli.inspect",
    "watermarks": "app.cli.inspect",
    "ha-status": "app.cli.inspect",
    "elect": "app.cli.logs",
    "leader": "app.cli.members",
    "controller": "app.cli.members",
    "members": "app.cli.members",
    "rebuild-controllers": "app.cli.rebuild_controllers",
    "token": "app.cli.access.token",
    "trim": "app.cli.upkeep",
    "verify": "app.cli.upkeep",
    "tables": "app.cli.tables",
    "materialize": "app.cli.tables",
    "bench": "app.cli.bench",
    "sim": "app.cli.sim",
    "doctor": "app.cli.doctor",
}


class LazyGroup(click.Group):
    """Command group that imports modules on demand (COMMANDS), so that `commitlog serve` starts quickly."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(
            importlib.import_module(COMMANDS[cmd_name]), f"{cmd_name.replace('-', '_')}_command"
        )
        assert isinstance(command, click.Command)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="commitlog")
def cli() -> None:
    """A replicated commit log whose records become Delta tables.

    Exit codes: 0 success, 1 other error or a check found a difference, 2 usage, 3 a condition failed,
    4 not found, 5 unavailable, 6 outcome unknown. Commands have --help, and --json for scripts.
    """


def main() -> None:
    """Run the command line; never returns."""
    try:
        cli.main(prog_name="commitlog")
    except BrokenPipeError:
        # the reader of the output has closed it (`commitlog read | head`): nothing more can be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
