"""Named clusters of a user: a name, its endpoints, and optionally a log and the file of a token.

One JSON file: `current` names the context that commands use without --endpoint and --context. Tokens stay in
files of their own, which the user protects.
"""

import os
from pathlib import Path

import msgspec


class ContextError(Exception):
    """A context cannot be used. The message names it and the remedy."""


class NamedCluster(msgspec.Struct, frozen=True, omit_defaults=True):
    """One context. endpoints: base URLs; log: default of --log; token_file: its first line is the token."""

    endpoints: list[str]
    log: str | None = None
    token_file: str | None = None

    def token(self) -> str | None:
        """Return the token, None without a file. Raises ContextError."""
        if self.token_file is None:
            return None
        try:
            lines = Path(self.token_file).expanduser().read_text("utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            raise ContextError(f"the token file {self.token_file} cannot be read ({error})") from error
        if not lines:
            raise ContextError(f"the token file {self.token_file} is empty")
        return lines[0]


class Contexts(msgspec.Struct):
    """All contexts of the user. current: None when no context is in use."""

    current: str | None = None
    contexts: dict[str, NamedCluster] = {}


def path() -> Path:
    """Return the file: COMMITLOG_CONTEXTS, else contexts.json beside COMMITLOG_STATE, else in the user's
    folder for configuration (XDG)."""
    if named := os.environ.get("COMMITLOG_CONTEXTS"):
        return Path(named)
    if state := os.environ.get("COMMITLOG_STATE"):
        return Path(state).with_name("contexts.json")
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "commitlog" / "contexts.json"


def load() -> Contexts:
    """Return the contexts; none while there is no file. Raises ContextError for a file that is not valid."""
    try:
        return msgspec.json.decode(path().read_bytes(), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except (OSError, msgspec.DecodeError) as error:
        raise ContextError(f"{path()} cannot be read ({error}); repair or delete it") from error


def save(known: Contexts) -> None:
    """Replace the file. Raises OSError."""
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    whole = file.with_name(f"{file.name}.{os.getpid()}")
    whole.write_bytes(msgspec.json.format(msgspec.json.encode(known), indent=2) + b"\n")
    whole.replace(file)


def find(name: str | None) -> NamedCluster | None:
    """Return the named context, or the current one; None if there is none. Raises ContextError."""
    known = load()
    wanted = name or known.current
    if wanted is None:
        return None
    if wanted not in known.contexts:
        names = ", ".join(known.contexts) or "none"
        raise ContextError(f"the context {wanted!r} does not exist; known contexts: {names}")
    return known.contexts[wanted]
