"""The shape of the code base: pure modules do no I/O, imports point one way and never in a circle, folders
and files are small."""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("app", "storage", "spark_jobs")
PURE = [
    *sorted((ROOT / "app" / "raft").glob("*.py")),
    *sorted((ROOT / "app" / "controller").glob("*.py")),
    *sorted((ROOT / "app" / "ha").rglob("*.py")),
    *sorted((ROOT / "app" / "log").glob("*.py")),
    *sorted((ROOT / "app" / "schemas").glob("*.py")),
    *sorted((ROOT / "storage" / "format").glob("*.py")),
    *(
        ROOT / "app" / "node" / "links" / f"{name}.py"
        for name in ("handshake", "handshakes_in_progress", "sealed_frames")
    ),
    ROOT / "app" / "tables" / "digests.py",
    ROOT / "app" / "certificate_end.py",
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
TOP = ("app.serve", "app.main", "app.middleware", "app.listener")  # nothing below imports the assembly
ABOVE_PURE = ("app.node", "app.api", "app.cli", "app.local", "app.demo", "spark_jobs", "tests", *TOP)
LAYERS = {  # package -> what it may not import
    "storage/format": ("storage.log", "storage.care"),
    "storage/log": ("storage.care",),
    "storage": ("app", "spark_jobs", "notebooks", "tests"),
    "app/errors": (*ABOVE_PURE, "app.raft", "app.ha", "app.controller"),
    "app/log": (*ABOVE_PURE, "app.raft", "app.ha", "app.controller", "app.settings"),
    "app/controller": ABOVE_PURE,
    "app/schemas": (*ABOVE_PURE, "app.raft", "app.ha", "app.controller", "app.settings", "app.log"),
    "app/raft": ABOVE_PURE,
    "app/tables": ABOVE_PURE,
    "app/ha": (*ABOVE_PURE, "app.settings"),
    "app/settings": ABOVE_PURE,
    "app/node": ("app.api", "app.cli", "app.local", "app.demo", "spark_jobs", "tests", *TOP),
    "app/api": ("app.cli", "app.local", "app.demo", "spark_jobs", "tests", *TOP),
    "spark_jobs": ("app.node", "app.api", "app.cli", "app.local", "app.demo", "app.raft", "tests", *TOP),
}
HOLDS_FOLDERS = {
    "app",
    "app.api",
    "app.controller",
    "app.node",
    "spark_jobs",
    "storage",
}  # their own files count one by one
MAX_FILES = 17  # of a folder
MAX_LINES = 500  # of a file


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@cache
def imports_of(path: Path, *, within_functions: bool = True) -> tuple[tuple[str, str], ...]:
    """Return (module, name) of every import in a file; the name is empty for a plain `import module`."""
    return tuple(walk_imports(path, within_functions))


def walk_imports(path: Path, within_functions: bool) -> Iterator[tuple[str, str]]:
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif is_for_types(node):
            continue
        elif within_functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting.extend(each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.expr))


def modules() -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def import_graph() -> dict[str, set[str]]:
    """Return the modules that each module imports when it is imported."""
    known = modules()
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        targets = {
            full if (full := f"{module}.{imported}") in known else module
            for module, imported in imports_of(path, within_functions=False)
        }
        graph[name] = {target for target in targets if target in known and target != name}
    return graph


def folder_of(module: str, known: Mapping[str, Path]) -> str:
    folder = ".".join(known[module].relative_to(ROOT).parent.parts)
    return module if folder in HOLDS_FOLDERS else folder


def circles(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the nodes that reach themselves."""
    found = []
    for start in graph:
        seen: set[str] = set()
        waiting = list(graph[start])
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting.extend(graph.get(node, ()))
        if start in seen:
            found.append(start)
    return found


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
        for module, name in imports_of(path):
            full = f"{module}.{name}"
            upward = [above for above in forbidden if f"{full}.".startswith(f"{above}.")]
            assert not upward, f"{path.relative_to(ROOT)} imports {full}"


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert circles(import_graph()) == []


def test_no_folder_imports_itself_by_way_of_others() -> None:
    known = modules()
    folders: dict[str, set[str]] = defaultdict(set)
    for module, targets in import_graph().items():
        source = folder_of(module, known)
        folders[source] |= {folder_of(target, known) for target in targets} - {source}
    assert circles(folders) == []


def test_folders_are_small() -> None:
    """Folders of product code and of tests alike."""
    paths = [*modules().values(), *(ROOT / "tests").rglob("*.py")]
    files = Counter(str(path.parent.relative_to(ROOT)) for path in paths if path.stem != "__init__")
    assert {folder: count for folder, count in files.items() if count > MAX_FILES} == {}


def test_files_are_short() -> None:
    paths = [*modules().values(), *(ROOT / "tests").rglob("*.py")]
    lines = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8").count("\n") for path in paths}
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}
