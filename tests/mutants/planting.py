"""Planted bugs: each one a small patch that breaks a rule, with the test that must detect it.

A bug that survives shows that the simulator, or a test, cannot fail at that place. The files of raft/ and
groups/ register their bugs here when they are imported; tests/mutants/catalogue.py imports them all.
"""

import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

Patch = Callable[[pytest.MonkeyPatch], None]
Killer = Callable[[Path], None]
Bug = TypeVar("Bug", bound=Callable[..., Any])


@dataclass(frozen=True)
class Mutant:
    """killer: the test that must fail under the patch, called with an empty folder; None: the simulator."""

    name: str
    rule: str
    patch: Patch
    killer: Killer | None


@dataclass(frozen=True)
class GroupMutant(Mutant):
    """mode: of the logs that the bug is about, controller or classic: which simulator looks for it."""

    mode: str


MUTANTS: list[Mutant] = []
GROUP_MUTANTS: list[GroupMutant] = []


def mutant(rule: str, killer: Killer | None = None) -> Callable[[Patch], Patch]:
    """Add the function, which plants the bug, to MUTANTS."""

    def register(patch: Patch) -> Patch:
        MUTANTS.append(Mutant(patch.__name__, rule, patch, killer))
        return patch

    return register


def group_mutant(rule: str, killer: Killer, *, mode: str) -> Callable[[Patch], Patch]:
    """Add the function, which plants the bug, to GROUP_MUTANTS."""

    def register(patch: Patch) -> Patch:
        GROUP_MUTANTS.append(GroupMutant(patch.__name__, rule, patch, killer, mode))
        return patch

    return register


def planted(patch: pytest.MonkeyPatch, owner: Any, name: str) -> Callable[[Bug], Bug]:
    """Replace `owner.name` by the function, which gets the original as its first argument."""
    original = getattr(owner, name)

    def replace(bug: Bug) -> Bug:
        patch.setattr(owner, name, lambda *given, **options: bug(original, *given, **options))
        return bug

    return replace


def edited(patch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str) -> None:
    """Let `owner.name` run with its source changed from `old` to `new`.

    Raises LookupError when `old` does not occur exactly once: then the bug does not fit the code any more.
    """
    found = inspect.getattr_static(owner, name)
    function = found.fget if isinstance(found, property) else found
    function = function.__func__ if isinstance(function, classmethod) else function
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(old) != 1:
        raise LookupError(f"{name} holds {old!r} {source.count(old)} times")
    # Decorators are applied below: the source of a property begins with one.
    lines = source.replace(old, new).splitlines()
    body = "\n".join(lines[next(i for i, line in enumerate(lines) if line.startswith("def ")) :])
    module = sys.modules[function.__module__]
    names: dict[str, Any] = {}
    exec(compile(body, f"<planted in {name}>", "exec"), vars(module), names)
    bug: Any = names[function.__name__]
    if isinstance(found, property):
        bug = property(bug)
    elif isinstance(found, classmethod):
        bug = classmethod(bug)
    patch.setattr(owner, name, bug)


def plant(
    name: str,
    rule: str,
    edit: tuple[Any, str, str, str],
    killer: Killer | None = None,
    *,
    mode: str | None = None,
) -> None:
    """Add a bug that edits source to MUTANTS, or to GROUP_MUTANTS if it has a mode, and a killer then.

    edit: owner, function, the old text, the new text.
    """

    def patch_with(patch: pytest.MonkeyPatch) -> None:
        edited(patch, *edit)

    patch_of: Patch = patch_with
    if mode is None:
        MUTANTS.append(Mutant(name, rule, patch_of, killer))
    else:
        GROUP_MUTANTS.append(GroupMutant(name, rule, patch_of, killer, mode))
