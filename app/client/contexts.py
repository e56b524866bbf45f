"""Named clusters of a user: a name, its endpoints, and optionally a log and the file of a token.

One JSON file: `current` names the context that the user selected. While none is selected, commands use the
newest cluster of a running `commitlog up`, which keeps a context of its own here as long as it runs. Tokens
stay in files of their own, which the user protects.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from app.settings.home_folder import home_folder


class ContextError(Exception):
    """A context cannot be used. The message names it and the remedy."""


class UnknownContext(ContextError):
    """No context has the given name."""


class NamedCluster(msgspec.Struct, frozen=True, omit_defaults=True):
    """One context. endpoints: base URLs; log: default of --log; token_file: its first line is the token; pid:
    the `commitlog up` that added it, None for a context of the user."""

    endpoints: list[str]
    log: str | None = None
    token_file: str | None = None
    pid: int | None = None

    def token(self) -> str | None:
        """Return the token, None without a file. Raises ContextError."""
        if self.token_file is None:
            return None
        try:
            lines = Path(self.token_file).expanduser().read_text("utf-8").split()
        except (OSError, RuntimeError, UnicodeDecodeError) as error:  # RuntimeError: no home folder for ~
            raise ContextError(f"the token file {self.token_file} cannot be read ({error})") from error
        if not lines:
            raise ContextError(f"the token file {self.token_file} is empty")
        return lines[0]

    @property
    def is_up(self) -> bool:
        """True while the `commitlog up` that added the context runs."""
        return self.pid is not None and _runs(self.pid)


class Contexts(msgspec.Struct):
    """All contexts of the user, the newest last. current: that the user selected."""

    current: str | None = None
    contexts: dict[str, NamedCluster] = {}

    @property
    def running(self) -> list[str]:
        """The contexts of each `commitlog up` that runs, the newest last."""
        return [name for name, each in self.contexts.items() if each.is_up]

    @property
    def in_use(self) -> str | None:
        """The context of commands that name none: the selected one, else the newest of `commitlog up`."""
        running = self.running
        return self.current or (running[-1] if running else None)


def path() -> Path:
    """Return the file: COMMITLOG_CONTEXTS, else contexts.json beside COMMITLOG_STATE, else in the user's
    folder for configuration (XDG)."""
    if named := os.environ.get("COMMITLOG_CONTEXTS"):
        return Path(named)
    if state := os.environ.get("COMMITLOG_STATE"):
        return Path(state).with_name("contexts.json")
    home = os.environ.get("XDG_CONFIG_HOME") or home_folder() / ".config"
    return Path(home) / "commitlog" / "contexts.json"


def load() -> Contexts:
    """Return the contexts; none while there is no file. Raises ContextError for a file that is not valid."""
    try:
        return msgspec.json.decode(path().read_bytes(), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:  # a home folder of another user
        raise ContextError(
            f"{path()} cannot be read ({error.strerror}); set COMMITLOG_CONTEXTS to a file of this user"
        ) from error
    except msgspec.DecodeError as error:
        raise ContextError(f"{path()} cannot be read ({error}); repair or delete it") from error


@contextmanager
def changing() -> Iterator[Contexts]:
    """The contexts, to be changed within a `with`, which then replaces the file. One process at a time.

    Raises ContextError.
    """
    file = path()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.with_name(f"{file.name}.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = load()
            yield known
            whole = file.with_name(f"{file.name}.new")
            whole.write_bytes(msgspec.json.format(msgspec.json.encode(known), indent=2) + b"\n")
            whole.replace(file)
    except OSError as error:
        raise ContextError(
            f"{file} cannot be written ({error}); set COMMITLOG_CONTEXTS to a file that can be"
        ) from error


def add_running(name: str, endpoints: list[str]) -> str:
    """Add the context of this process's cluster, and return its name: `name`, or `name-2`, … if the user or
    another running cluster has that. Forget clusters whose processes have ended. Raises ContextError."""
    with changing() as known:
        for ended in [other for other, each in known.contexts.items() if each.pid and not each.is_up]:
            remove(known, ended)
        free, number = name, 1
        while free in known.contexts:
            number += 1
            free = f"{name}-{number}"
        known.contexts[free] = NamedCluster(endpoints, pid=os.getpid())
    return free


def remove_running(name: str) -> None:
    """Undo `add_running`. Raises ContextError."""
    with changing() as known:
        if name in known.contexts and known.contexts[name].pid == os.getpid():
            remove(known, name)


def remove(known: Contexts, name: str) -> None:
    """Remove a context. If it was selected, none is."""
    del known.contexts[name]
    if known.current == name:
        known.current = None


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # of another user: it runs
    return True


def find(name: str | None) -> NamedCluster | None:
    """Return the named context, or the one in use; None if there is none. Raises ContextError."""
    known = load()
    wanted = name or known.in_use
    if wanted is None:
        return None
    if wanted not in known.contexts:
        names = ", ".join(known.contexts) or "none"
        raise UnknownContext(f"the context {wanted!r} does not exist; known contexts: {names}")
    return known.contexts[wanted]
