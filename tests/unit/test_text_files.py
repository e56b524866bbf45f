"""Text files are UTF-8, whatever the locale of the machine: each call that opens one names the encoding."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[2]
FOLDERS: Final = ("app", "storage", "spark_jobs", "docs")
TEXT_MODES: Final = {"r", "w", "a", "x", "r+", "w+", "a+"}
OPENING: Final = ("open", "fdopen", "NamedTemporaryFile")
ENCODING_AT: Final = {"read_text": 1, "write_text": 2}  # number of arguments that include the encoding


def without_encoding(tree: ast.AST) -> Iterator[int]:
    """Yield the line of each call that reads or writes text in the encoding of the locale."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        named = {keyword.arg for keyword in call.keywords}
        modes = {each.value for each in call.args if isinstance(each, ast.Constant)}
        is_text = (
            len(call.args) < ENCODING_AT.get(name, 0)
            or (name in OPENING and not modes.isdisjoint(TEXT_MODES))
            or not named.isdisjoint({"text", "universal_newlines"})
        )
        if is_text and "encoding" not in named:
            yield call.lineno


def test_no_text_is_read_or_written_in_the_encoding_of_the_locale() -> None:
    """A configuration, a schema or a notebook with other than ASCII letters is read alike everywhere."""
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in without_encoding(ast.parse(path.read_bytes()))
    ]
    assert found == []
