"""`commitlog sim`: run the simulator of the test suite by seed (`python -m tests.simulation`)."""

import os
import subprocess
import sys

import click

from app.cli.context import CommandFailed
from app.setup.environment import ROOT


@click.command("sim", context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def sim_command(arguments: tuple[str, ...]) -> None:
    """Simulate a cluster under faults (--mode raft, controller, classic; --seed N; --help for more).

    \b
    Examples:
      commitlog sim --seed 7
      commitlog sim --mode controller --seeds 20
    """
    if not (ROOT / "tests" / "simulation").is_dir():
        raise CommandFailed(
            f"the simulator is a part of the tests, which are not installed in {ROOT}: run this command in a "
            "checkout of the repository"
        )
    given = [argument for argument in arguments if argument != "--json"]  # the output is JSON in any case
    as_json = "--json" in arguments
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    simulator = [sys.executable, "-m", "tests.simulation", *given]
    errors = subprocess.PIPE if as_json else None
    environment = {**os.environ, "PYTHONPATH": path}
    result = subprocess.run(simulator, env=environment, check=False, stderr=errors, encoding="utf-8")
    if as_json and result.returncode == click.UsageError.exit_code:
        raise click.UsageError(result.stderr.rpartition("Error: ")[2].strip())
    if as_json:
        sys.stderr.write(result.stderr)
    sys.exit(result.returncode)
