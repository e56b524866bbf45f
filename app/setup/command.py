"""The command line of `python3 app/setup`, and its plain output."""

import argparse  # not click: no package is installed yet
import os
import sys
from pathlib import Path

from app.setup.checks import State, check_machine
from app.setup.environment import ROOT, Environment, SetupFailed


def main(arguments: list[str]) -> int:
    """Set up, or with --doctor check only. Exit code 0 on success, 1 if a requirement is missing."""
    parser = argparse.ArgumentParser(prog="python3 app/setup", description="Set up commitlog in .venv.")
    parser.add_argument("--doctor", action="store_true", help="check the machine only; change nothing")
    parser.add_argument("--again", action="store_true", help="set up even if the environment is complete")
    options = parser.parse_args(arguments)
    if options.doctor:
        restart_in_environment()
        try:
            return report()
        except BrokenPipeError:  # `make doctor | head`: nothing more can be written
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
    try:
        Environment().set_up(again=options.again)
    except SetupFailed as error:
        sys.stderr.write(f"\nset-up failed: {error}\n")
        return 1
    except OSError as error:  # a checkout that is read-only or of another user, a full disk
        sys.stderr.write(
            f"\nset-up failed: {error}\nIt needs about 2 GiB of space in .venv and .cache of {ROOT}, and the "
            "permission to write there.\n"
        )
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\nset-up interrupted; run it again to continue\n")
        return 130
    return 0


def restart_in_environment() -> None:
    """Replace this process by the environment's Python, if it exists, to check its packages."""
    environment = Environment()
    if environment.is_ready() and Path(sys.prefix) != environment.folder:
        os.execv(environment.python, [str(environment.python), str(ROOT / "app" / "setup"), *sys.argv[1:]])


def report() -> int:
    """Print each check of this machine with its remedy. Return 1 if a requirement is missing."""
    checks = check_machine()
    for check in checks:
        sys.stdout.write(f"{check.state.value:>7}  {check.name}: {check.detail}\n")
        if check.remedy:
            sys.stdout.write(f"{'':>7}  -> {check.remedy}\n")
    sys.stdout.flush()
    return 1 if any(check.state is State.MISSING for check in checks) else 0
