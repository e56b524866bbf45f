"""`python3 app/setup [--doctor]`: create the environment in .venv, or report what this machine lacks.

Any Python 3 can start this file: one that is too old starts a newer one on the PATH.
"""

import os
import shutil
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120 - as old as Python 3


def newer_python() -> "str | None":
    """Return the path of a Python 3.11 or newer on the PATH, None if there is none."""
    for minor in (11, 12, 13, 14):
        found = shutil.which("python3.%d" % minor)  # noqa: UP031 - an old Python must be able to read this
        if found:
            return found
    return None


if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036 - this file runs before anybody has checked
        python = newer_python()
        if python is None:
            sys.exit(
                "commitlog needs Python 3.11 or newer; none was found in the PATH.\n"
                "On Debian: apt-get install python3 python3-venv"
            )
        os.execv(python, [python, *sys.argv])
    sys.path[0] = ROOT
    from app.setup.command import main

    sys.exit(main(sys.argv[1:]))
