"""No constructor takes more than eight parameters: what belongs together is handed over as one object.

Value types (dataclasses, msgspec structs) have no constructor of their own and do not count.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[2]
PARAMETERS_MAX: Final = 8


def constructors() -> Iterator[tuple[str, int]]:
    """Yield the name of each class with a constructor, and how many parameters that takes besides self."""
    for package in ("app", "storage"):
        for path in (ROOT / package).rglob("*.py"):
            for owner in ast.walk(ast.parse(path.read_text())):
                if isinstance(owner, ast.ClassDef):
                    for method in owner.body:
                        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                            given = method.args
                            named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
                            yield owner.name, len(named) - 1 + bool(given.vararg) + bool(given.kwarg)


def test_no_constructor_takes_more_than_eight_parameters() -> None:
    assert {name: count for name, count in constructors() if count > PARAMETERS_MAX} == {}
