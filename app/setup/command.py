"""The command line of `python3 app/setup`, and its plain output."""

import argparse
import os
import sys
from pathlib import Path

from app.setup.checks import State, check_machine
from app.setup.environment import ROOT, Environment, SetupFailed


def main(arguments: list[str]) -> int:
    """Set up, or with --doctor only look. Exit code 0 when all is well, 1 when something is missing."""
    parser = argparse.ArgumentParser(prog="python3 app/setup", description="Set up commitlog in .venv.")
    parser.add_argument("--doctor", action="store_true", help="change nothing, say what is missing")
    parser.add_argument("--again", action="store_true", help="set up even when all seems to be there")
    options = parser.parse_args(arguments)
    if options.doctor:
        look_with_the_environment()
        return report()
    try:
        Environment().set_up(again=options.again)
    except SetupFailed as error:
        sys.stderr.write(f"\nset-up failed: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\nset-up interrupted; run it again to go on\n")
        return 130
    return 0


def look_with_the_environment() -> None:
    """Go on as the environment's own Python, if there is one: its packages are what counts."""
    environment = Environment()
    if environment.is_ready() and Path(sys.prefix) != environment.folder:
        os.execv(environment.python, [str(environment.python), str(ROOT / "app" / "setup"), *sys.argv[1:]])


def report() -> int:
    """Print each check of this machine, and how to mend what is missing. 1 when something is."""
    checks = check_machine()
    for check in checks:
        sys.stdout.write(f"{check.state.value:>7}  {check.name}: {check.detail}\n")
        if check.remedy:
            sys.stdout.write(f"{'':>7}  -> {check.remedy}\n")
    return 1 if any(check.state is State.MISSING for check in checks) else 0
