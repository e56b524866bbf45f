"""`python -m app.local.child PARENT MODULE [ARGUMENT ...]`: runs a module in a process that ends with its
parent.

The kernel sends a SIGTERM when the parent ends, in any way. The child requests this itself: a parent with
threads must not run anything between fork and exec.
"""

import ctypes
import os
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Run the module and return when it ends; return at once if the parent has ended already."""
    parent, module, *arguments = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit(1)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
