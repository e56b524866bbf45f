"""`commitlog sim`: the simulator of the test suite, by seed."""

import importlib
import importlib.util
import sys

import click

from app.cli.context import CommandFailed
from app.setup.environment import ROOT


@click.command("sim", context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def sim_command(arguments: tuple[str, ...]) -> None:
    """Simulate a cluster under faults (--seed N; --help for more)."""
    if not (ROOT / "tests" / "simulation").is_dir():
        raise CommandFailed("the simulator belongs to the test suite: run this from a checkout")
    sys.path.insert(0, str(ROOT))
    simulator = importlib.import_module("tests.simulation.run")
    sys.exit(simulator.main(list(arguments)))
