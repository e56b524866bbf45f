"""Planted bugs as edits of the source of one function: what stands there, and what stands there instead."""

import inspect
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from tests.mutants.mutants import MUTANTS, Killer, Mutant


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


def plant(name: str, rule: str, edit: tuple[Any, str, str, str], killer: Killer | None = None) -> None:
    """Take the bug into MUTANTS. edit: owner, function, what stands there, what stands there instead."""

    def patch_with(patch: pytest.MonkeyPatch) -> None:
        edited(patch, *edit)

    patch_of: Callable[[pytest.MonkeyPatch], None] = patch_with
    MUTANTS.append(Mutant(name, rule, patch_of, killer))
