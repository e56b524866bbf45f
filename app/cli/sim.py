"""`commitlog sim`: run the simulator of the test suite by seed."""

import importlib
import importlib.util
import sys

import click

from app.cli.context import CommandFailed
from app.setup.environment import ROOT

SIMULATORS = {
    "raft": "tests.simulation.run",
    "controller": "tests.simulation.ha.run",
    "classic": "tests.simulation.ha.classic",
}


@click.command("sim", context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def sim_command(arguments: tuple[str, ...]) -> None:
    """Simulate a cluster under faults (--mode raft, controller, classic; --seed N; --help for more)."""
    if not (ROOT / "tests" / "simulation").is_dir():
        raise CommandFailed("the simulator is part of the test suite: run this command from a checkout")
    sys.path.insert(0, str(ROOT))
    mode, rest = _mode([argument for argument in arguments if argument != "--json"])  # it is JSON anyway
    simulator = importlib.import_module(SIMULATORS[mode])
    sys.exit(simulator.main(rest))


def _mode(arguments: list[str]) -> tuple[str, list[str]]:
    """Take --mode out: everything else is the simulator's."""
    if "--mode" not in arguments:
        return "raft", arguments
    place = arguments.index("--mode")
    mode = arguments[place + 1] if place + 1 < len(arguments) else ""
    if mode not in SIMULATORS:
        raise click.UsageError(f"--mode must be one of {', '.join(SIMULATORS)}")
    return mode, arguments[:place] + arguments[place + 2 :]
