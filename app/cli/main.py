"""`commitlog`: entry point of all commands. A command's module is imported when the command is used."""

import importlib

import click

from app.cli.context import json_option
from app.cli.groups import RootGroup

# Each command: its module, and its line in `commitlog --help`, which imports no module.
COMMANDS = {
    "up": ("app.cli.up", "Run a local cluster and its Spark job in the foreground."),
    "serve": ("app.cli.serve", "Run one node in the foreground."),
    "demo": ("app.cli.demo", "Run the demo: three nodes, Spark, flights, a killed leader, proofs."),
    "status": ("app.cli.status", "Show the role, term, indexes and lag of each node."),
    "append": ("app.cli.records.append", "Append records: arguments, a file or standard input."),
    "read": ("app.cli.records.read", "Read records, or export a log to a file."),
    "tail": ("app.cli.records.read", "Show the last records; with -f also new ones."),
    "logs": ("app.cli.logs", "List, show, create, change and delete logs."),
    "cursors": ("app.cli.log_state.cursors", "List, show, set and delete the cursors of a log."),
    "fence": ("app.cli.log_state.fence", "Set or remove the fencing token of a log."),
    "schema": (
        "app.cli.log_state.schema",
        "Set, show, check and infer the schema of a log.",
    ),
    "events": ("app.cli.log_state.events", "Show the journal of events of a node."),
    "backup": ("app.cli.backup.backup", "Copy the committed records of a log into a folder."),
    "restore": ("app.cli.backup.restore", "Restore a backup into a new log."),
    "epochs": ("app.cli.inspect", "Show the epochs of a log."),
    "watermarks": ("app.cli.inspect", "Show what each peer has acknowledged, by term."),
    "ha-status": ("app.cli.inspect", "Show the gap and the transfer rate of each slave."),
    "elect": ("app.cli.logs", "Elect the master of a log in controller mode."),
    "leader": ("app.cli.members", "Transfer the leadership of a log."),
    "controller": ("app.cli.members", "Show or change the settings of the controllers."),
    "members": ("app.cli.members", "List, add, promote, demote, remove and clean nodes."),
    "rebuild-controllers": ("app.cli.rebuild_controllers", "Restore the log of the controllers."),
    "token": ("app.cli.access.token", "Make tokens for the tokens file of the nodes."),
    "trim": ("app.cli.logs", "Remove the oldest records of a log."),
    "verify": ("app.cli.verify", "Compare the replicas of a log, or the log with its table."),
    "tables": ("app.cli.delta.tables", "Show the Delta tables of a log."),
    "materialize": ("app.cli.delta.materialize", "Run the Spark job that writes logs to Delta tables."),
    "bench": ("app.cli.bench", "Measure the throughput of a cluster."),
    "sim": ("app.cli.sim", "Simulate a cluster under faults."),
    "doctor": ("app.cli.doctor", "Check this machine."),
    "context": ("app.cli.shell.contexts", "List, show, add, use and remove named clusters."),
    "completion": ("app.cli.shell.completion", "Print the completion script of a shell."),
}


class LazyGroup(RootGroup):
    """Command group that imports modules on demand (COMMANDS), so that every command starts quickly."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


def _print_version(ctx: click.Context, _option: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from app.version import VERSION

        click.echo(f"commitlog, version {VERSION}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
@json_option
def cli(as_json: bool) -> None:
    """A replicated commit log whose records become Delta tables.

    Exit codes: 0 success, 1 other error or a check found a difference, 2 usage, 3 a condition failed,
    4 not found, 5 unavailable, 6 outcome unknown, 130 interrupted by Ctrl-C. Commands have --help with
    examples, and --json for scripts; errors are then problem documents on standard error.

    \b
    Examples:
      commitlog up --no-spark                  a local cluster of three nodes
      commitlog append hello --key greeting
      commitlog tail -f
    """


def main() -> None:
    """Run the command line; never returns."""
    cli.main(prog_name="commitlog")


if __name__ == "__main__":
    main()
