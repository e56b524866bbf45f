"""One name, one meaning: constants, loggers, names of classes and of types."""

import ast
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGES = ("app", "storage", "spark_jobs")
OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
    ast.Sub: operator.sub,
    ast.LShift: operator.lshift,
}


@dataclass(frozen=True)
class Names:
    """Module-level assignments and classes of a file: without its tree, which would fill the memory."""

    path: str
    assigned: tuple[tuple[str, ast.expr], ...]
    classes: tuple[str, ...]


@cache
def modules() -> tuple[Names, ...]:
    return tuple(
        names_of(str(path.relative_to(ROOT)), ast.parse(path.read_text()))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    )


def names_of(path: str, tree: ast.Module) -> Names:
    classes = (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return Names(path, tuple(assignments(tree)), tuple(classes))


def assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield the name and the value of every assignment to one module-level name."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value


def value_of(expression: ast.expr) -> str:
    """Return what a constant is: the number that arithmetic on numbers gives, else its text."""
    match expression:
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in OPERATORS:
            sides = value_of(left), value_of(right)
            if all(side.isdigit() for side in sides):
                return str(OPERATORS[type(operation)](*map(int, sides)))
    return ast.unparse(expression)


def test_a_constant_is_defined_once() -> None:
    places = defaultdict(list)
    for each in modules():
        for name, value in each.assigned:
            if re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
                places[name, value_of(value)].append(each.path)
    assert {constant: found for constant, found in places.items() if len(found) > 1} == {}


def test_every_logger_is_called_logger_and_named_after_its_module() -> None:
    named = set()
    for each in modules():
        for name, value in each.assigned:
            if ast.unparse(value).startswith("logging.getLogger("):
                named.add((name, ast.unparse(value)))
    assert named == {("logger", "logging.getLogger(__name__)")}


# The exceptions of the Python client have the names of the service's refusals that they represent, and a
# full disk has the name of the refusal that it causes.
TWO_OF_A_NAME = frozenset({"InvalidRequest", "NotFound", "StorageFull"})
# The frames of AutoSwitch are a part of the frames of the wire; `Record` of the repairs is a function, as
# their parameter `record`.
TWO_TYPES_OF_A_NAME = frozenset({"Frame", "Record"})


def test_a_class_name_has_one_meaning() -> None:
    places = defaultdict(list)
    for each in modules():
        for name in each.classes:
            places[name].append(each.path)
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert {name: found for name, found in twice.items() if name not in TWO_OF_A_NAME} == {}


def test_a_type_alias_has_the_name_of_no_other_type() -> None:
    places = defaultdict(list)
    for each in modules():
        aliases = [name for name, value in each.assigned if is_alias(name, value)]
        for name in (*each.classes, *aliases):
            places[name].append(each.path)
    twice = {name: found for name, found in places.items() if len(found) > 1}
    known = TWO_OF_A_NAME | TWO_TYPES_OF_A_NAME
    assert {name: found for name, found in twice.items() if name not in known} == {}


def is_alias(name: str, value: ast.expr) -> bool:
    """Return whether the assignment names a type. Type variables are names of one module alone."""
    return bool(re.fullmatch(r"[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*", name)) and not (
        isinstance(value, ast.Call) and ast.unparse(value.func) == "TypeVar"
    )
