"""The gap without an acknowledged append when the leader goes: families of tests.chaos, one JSON line each.

`python -m tests.bench.failover [--scale 0.4]`: kill -9, a lost machine, a planned stop, a transfer; 50 kills
at scale 1. Exit code 1 when a history was violated or a goal missed.
"""

import argparse
import subprocess
import sys

from tests.support.programs import run_program

FAMILIES = ("kill-leader", "machine-lost", "stop-leader", "transfer")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", default="0.4")
    options = parser.parse_args()
    command = [sys.executable, "-m", "tests.chaos", "--scale", options.scale, "--family", *FAMILIES]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    run_program(main)
