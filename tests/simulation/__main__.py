"""Run a simulator of the test suite: `python -m tests.simulation [--mode raft|controller|classic] …`.

`commitlog sim` runs this module. `--help` shows the options of the mode.
"""

import sys

from tests.simulation.classic import group as classic
from tests.simulation.controller import run as controller
from tests.simulation.raft import run as raft

SIMULATORS = {"raft": raft.main, "controller": controller.main, "classic": classic.main}


def main(arguments: list[str]) -> int:
    """Run the simulator of the mode and return its exit code; 2 for an unknown mode."""
    mode = "raft"
    if "--mode" in arguments:
        place = arguments.index("--mode")
        mode = "".join(arguments[place + 1 : place + 2])
        arguments = arguments[:place] + arguments[place + 2 :]
    if mode not in SIMULATORS:
        sys.stderr.write(f"Error: --mode must be one of {', '.join(SIMULATORS)}, got {mode!r}\n")
        return 2
    return SIMULATORS[mode](arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
