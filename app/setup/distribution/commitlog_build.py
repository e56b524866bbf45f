"""Build backend of the wheel (PEP 517): setuptools on a copy of the repository where all code is one package.

    app         commitlog
    storage     commitlog.storage
    spark_jobs  commitlog.spark

A user's own package `app` or `storage` then never collides with an installed one. In the copy, each import
statement that names one of the three folders is changed, and each dotted name of a module in a string or a
comment (`python -m`, the entry points of pyproject.toml). The code itself is not generated: types, pickling
and tracebacks refer to real files. Editable installs and source distributions have the repository's folders.
"""

import ast
import os
import re
import shutil
import tempfile
import tokenize
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]

PLACES = {"app": "commitlog", "storage": "commitlog.storage", "spark_jobs": "commitlog.spark"}
ROOT_FILES = ("pyproject.toml", "README.md", "LICENSE")
ONLY_IN_REPOSITORY = Path("app", "setup", "distribution")
SPARK_REGISTRATION = "pyspark_commitlog"
_ROOTS = "|".join(PLACES)
_DOTTED = re.compile(rf"(?<![\w./-])({_ROOTS})((?:\.[A-Za-z_]\w*)+)")
_IMPORT = re.compile(rf"\s*(?:from (?P<root>{_ROOTS})\b|import (?P<plain>{_ROOTS})\.[\w.]+ as )")
_TEXT_TOKENS = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def build_wheel(
    wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    """Build the wheel of the repository in the current folder; return its file name."""
    target = Path(wheel_directory).resolve()
    with tempfile.TemporaryDirectory(prefix="commitlog-wheel-") as folder:
        stage(Path.cwd(), Path(folder))
        with _current_folder(Path(folder)):
            return str(build_meta.build_wheel(str(target), config_settings))


def stage(root: Path, target: Path) -> None:
    """Write the tree that setuptools packs: the files of the repository `root`, as the wheel names them."""
    rename = Renaming(root)
    for name in ROOT_FILES:
        shutil.copyfile(root / name, target / name)
    project = target / "pyproject.toml"
    project.write_text(rename.text(project.read_text("utf-8")), "utf-8")
    for package, place in PLACES.items():
        for path in sorted((root / package).rglob("*")):
            inside = path.relative_to(root)
            if not path.is_file() or path.suffix == ".pyc" or inside.is_relative_to(ONLY_IN_REPOSITORY):
                continue
            copy = target.joinpath(*place.split("."), path.relative_to(root / package))
            copy.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".py":
                copy.write_text(rename.source(path.read_text("utf-8"), str(inside)), "utf-8")
            else:
                shutil.copyfile(path, copy)
    registration = root / ONLY_IN_REPOSITORY / f"{SPARK_REGISTRATION}.py"
    (target / SPARK_REGISTRATION).mkdir()
    found_by_spark = target / SPARK_REGISTRATION / "__init__.py"
    found_by_spark.write_text(rename.source(registration.read_text("utf-8"), registration.name), "utf-8")


class Renaming:
    """Names of the modules in the repository `root`, and their names in the wheel."""

    def __init__(self, root: Path) -> None:
        self._modules = {
            f"{package}.{path.stem}"
            for package in PLACES
            for path in (root / package).iterdir()
            if path.suffix == ".py" or path.is_dir()
        }

    def text(self, text: str) -> str:
        """Return a text in which the names of modules are those of the wheel."""
        return _DOTTED.sub(self._name, text)

    def source(self, source: str, file_name: str) -> str:
        """Return Python source with its imports, strings and comments renamed.

        Raises ValueError for `import app.x`, which binds the name `app`: only `from app import x` and
        `import app.x as y` can be renamed.
        """
        lines = source.splitlines(keepends=True)
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line))
        edits: list[tuple[int, int, str]] = []  # start, end, replacement
        for token in tokenize.generate_tokens(StringIO(source).readline):
            if token.type in _TEXT_TOKENS:
                start, end = (starts[row - 1] + column for row, column in (token.start, token.end))
                edits.append((start, end, self.text(source[start:end])))
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import | ast.ImportFrom) and _is_own(node):
                found = _IMPORT.match(lines[node.lineno - 1])
                if found is None:
                    raise ValueError(
                        f"{file_name}:{node.lineno}: `import PACKAGE.x` must have a name (`as y`)"
                    )
                start = starts[node.lineno - 1]
                group = "root" if found["root"] else "plain"
                edits.append((start + found.start(group), start + found.end(group), PLACES[found[group]]))
        for start, end, replacement in sorted(edits, reverse=True):
            source = source[:start] + replacement + source[end:]
        return source

    def _name(self, found: re.Match[str]) -> str:
        root, rest = found.group(1, 2)
        is_module = f"{root}.{rest.split('.')[1]}" in self._modules
        return f"{PLACES[root]}{rest}" if is_module else found[0]


def _is_own(node: ast.Import | ast.ImportFrom) -> bool:
    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    return any(name.partition(".")[0] in PLACES for name in names)


@contextmanager
def _current_folder(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
