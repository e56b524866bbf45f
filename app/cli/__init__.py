"""The command line `commitlog`: a group of commands, one file for each kind."""

import io
import os
import sys


def run() -> None:
    """Run the command line; never returns. Ctrl-C during the imports ends it as Ctrl-C in a command does."""
    open_standard_streams()
    try:
        from app.cli.main import main
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    main()


def open_standard_streams() -> None:
    """Let the output be UTF-8 in every locale, as files and bodies are, and let a stream that the caller has
    closed be /dev/null: otherwise the next file or connection would get its descriptor."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
