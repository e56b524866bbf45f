"""The shape of the code base: pure modules do no I/O, and imports point one way (STYLE rules 1 and 2)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PURE = [
    *sorted((ROOT / "app" / "raft").glob("*.py")),
    *sorted((ROOT / "app" / "controller").glob("*.py")),
    *sorted((ROOT / "app" / "ha").glob("*.py")),
    ROOT / "app" / "replication.py",
    *(
        ROOT / "app" / f"{name}.py"
        for name in ("log_state", "log_snapshot", "log_facts", "claims", "producers")
    ),
    ROOT / "app" / "tables" / "digests.py",
    *(ROOT / "storage" / f"{name}.py" for name in ("batch", "records", "segment_format", "arrow_input")),
]
IMPURE = {
    "asyncio",
    "socket",
    "os",
    "time",
    "threading",
    "logging",
    "random",
    "pathlib",
    "subprocess",
    "uuid",
}
ALLOWED = {("random", "Random")}  # a seeded generator, handed in
LAYERS = {  # package -> what it may not import
    "storage": ("app", "spark_jobs", "notebooks", "tests"),
    "app/controller": ("app.node", "app.api", "app.cli", "spark_jobs", "tests"),
    "app/raft": ("app.node", "app.api", "app.cli", "spark_jobs", "tests"),
    "app/tables": ("app.node", "app.api", "app.cli", "spark_jobs", "tests"),
    "app/ha": ("app.node", "app.api", "app.cli", "app.settings", "spark_jobs", "tests"),
    "app/node": ("app.cli", "app.demo", "spark_jobs", "tests"),
    "app/api": ("app.cli", "app.demo", "spark_jobs", "tests"),
    "spark_jobs": ("app.node", "app.api", "app.cli", "app.demo", "app.raft", "tests"),
}


def imports_of(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of every import in a file; the name is empty for a plain `import module`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_pure_module_imports_nothing_that_acts(path: Path) -> None:
    acting = [
        (module, name)
        for module, name in imports_of(path)
        if module.partition(".")[0] in IMPURE and (module, name) not in ALLOWED
    ]
    assert acting == []


@pytest.mark.parametrize("package", LAYERS)
def test_imports_point_one_way(package: str) -> None:
    forbidden = LAYERS[package]
    for path in (ROOT / package).rglob("*.py"):
        for module, _ in imports_of(path):
            upward = [above for above in forbidden if module == above or module.startswith(f"{above}.")]
            assert not upward, f"{path.relative_to(ROOT)} imports {module}"
