"""`commitlog doctor`: check of this machine, with a remedy for each problem."""

import sys
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from app.cli.context import ExitCode, json_option, print_json, print_table
from app.setup.checks import State, check_machine

STYLES = {State.OK: "green", State.WARNING: "yellow", State.MISSING: "bold red"}


@click.command("doctor")
@click.option(
    "--port",
    type=click.IntRange(1, 64_000),
    default=8101,
    show_default=True,
    help="Port of node n1: it and the ports of the other nodes must be free.",
)
@click.option("--nodes", type=click.IntRange(1, 9), default=3, show_default=True, help="Number of nodes.")
@click.option("--data", type=click.Path(path_type=Path), help="Folder whose disk is checked for free space.")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Configuration file of a cluster: it is checked too, with the certificates and keys that it names, "
    "and the addresses and the data folder of the node in place of --port and --data.",
)
@click.option("--node", help="Node of --config that runs on this machine. Default: n1.")
@json_option
def doctor_command(
    port: int, nodes: int, data: Path | None, config: Path | None, node: str | None, as_json: bool
) -> None:
    """Check Python, environment, packages, Java, jars, data set, ports, disk and memory.

    The exit code is 1 if a requirement is missing.

    \b
    Examples:
      commitlog doctor
      commitlog doctor --port 18101 --json
      commitlog doctor --config /etc/commitlog/cluster.toml --node n1
    """
    if node is not None and config is None:
        raise click.UsageError("--node requires --config")
    checks = check_machine(port, nodes, data)
    if config is not None:
        from app.setup.node_checks import check_node

        found = check_node(config, node or "n1")
        ours = {check.name for check in found}  # of the node in place of those of a local cluster
        checks = [check for check in checks if check.name not in ours] + found
    healthy = all(check.state is not State.MISSING for check in checks)
    if as_json:
        findings = [
            {"name": check.name, "state": check.state.value, "detail": check.detail, "remedy": check.remedy}
            for check in checks
        ]
        print_json({"healthy": healthy, "checks": findings})
    else:
        table = Table("", "check", "found", "what to do", show_edge=False)
        for check in checks:
            state = Text(check.state.value, style=STYLES[check.state])
            table.add_row(state, check.name, check.detail, check.remedy)
        print_table(table)
    sys.exit(ExitCode.OK if healthy else ExitCode.FAILED)
