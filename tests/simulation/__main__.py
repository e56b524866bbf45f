"""Run a simulator of the test suite: `python -m tests.simulation [--mode raft|controller|classic] …`.

`commitlog sim` runs this module. `--help` shows the options of the mode.
"""

import click

from tests.simulation.classic import group as classic
from tests.simulation.controller import run as controller
from tests.simulation.raft import run as raft

SIMULATORS = {"raft": raft.main, "controller": controller.main, "classic": classic.main}
MODES = "Each mode has options of its own: --mode raft (the default), controller or classic, with --help."


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
)
@click.option("--mode", type=click.Choice(list(SIMULATORS)), default="raft")
@click.pass_context
def main(ctx: click.Context, mode: str) -> None:
    """Run the simulator of the mode with all other arguments."""
    SIMULATORS[mode].epilog = MODES
    SIMULATORS[mode].main(ctx.args, prog_name=f"commitlog sim --mode {mode}")


if __name__ == "__main__":
    main(prog_name="commitlog sim")
