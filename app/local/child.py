"""`python -m app.local.child PARENT MODULE [ARGUMENT ...]`: a module as a process that ends with its parent.

The kernel is asked to send a SIGTERM when the parent ends, however it ends. The child asks by itself: a
parent with threads must not run anything between fork and exec.
"""

import ctypes
import os
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Never returns before the module ends; at once when the parent is gone already."""
    parent, module, *arguments = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit(1)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
