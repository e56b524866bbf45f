"""Names that the notebooks import from the packages of this repository."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.py"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_name_that_a_notebook_calls_can_be_called(notebook: Path) -> None:
    nodes = list(ast.walk(ast.parse(notebook.read_text(encoding="utf-8"))))
    calls = [each.func for each in nodes if isinstance(each, ast.Call)]
    called = {each.id for each in calls if isinstance(each, ast.Name)}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("app.", "spark_jobs.")):
            for name in (alias.name for alias in node.names if alias.name in called):
                assert callable(getattr(import_module(node.module or ""), name)), f"{node.module}.{name}"
