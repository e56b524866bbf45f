"""The wheel: one package whose parts find one another, beside any package of a user."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from app.setup.distribution.commitlog_build import PLACES, Renaming
from tests.unit.test_imports import import_graph, imports_of, modules

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMPORT_NAMES = {"markdown-it-py": "markdown_it", "delta-spark": "delta"}  # by the name of the distribution
OF_PYSPARK = {"py4j"}
IMPORT = re.compile(r"^\s*(?:from|import) ([a-z_][\w.]*)(?: import (\w+))?", re.MULTILINE)
PROGRAM = re.compile(r"\bcommitlog\.(?:cli|demo|local|spark)(?:\.[a-z_0-9]+)+")


def own_modules(folder: Path) -> set[str]:
    files = (path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py"))
    return {".".join(file.parts).removesuffix(".__init__") for file in files}


def test_the_wheel_has_one_package_and_the_registration_for_spark(installed: Path) -> None:
    assert {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")} == {
        "commitlog",
        "pyspark_commitlog",
    }
    for name in (
        "py.typed",
        "api/routes/live/index.html",
        "spark/session/SessionCatalog.java",
        "cli/main.py",
    ):
        assert (installed / "commitlog" / name).is_file()


@pytest.fixture(scope="module")
def known(installed: Path) -> set[str]:
    return own_modules(installed)


def test_every_file_of_the_checkout_has_its_place(installed: Path) -> None:
    for folder, place in PLACES.items():
        for path in (ROOT / folder).rglob("*.*"):
            if path.suffix in (".py", ".java", ".html", ".js") and "distribution" not in path.parts:
                assert installed.joinpath(*place.split("."), path.relative_to(ROOT / folder)).is_file()


def test_every_import_in_the_wheel_names_a_module_of_the_wheel(installed: Path, known: set[str]) -> None:
    for path in installed.rglob("*.py"):
        for module, first in IMPORT.findall(path.read_text()):
            root = module.partition(".")[0]
            assert root not in PLACES, f"{path} imports {module}"
            if root == "commitlog":
                assert module in known or f"{module}.{first}" in known, f"{path} imports {module}"


def strings_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_programs_that_are_named_in_strings_are_in_the_wheel(installed: Path, known: set[str]) -> None:
    found = [
        (path, name)
        for path in (*installed.glob("commitlog/cli/*.py"), *installed.glob("commitlog/[dlst]*/**/*.py"))
        for text in strings_of(path)
        if re.fullmatch(PROGRAM, text) or text.startswith("python -m ")
        for name in PROGRAM.findall(text)
    ]
    assert len(found) > 30  # the commands, the jobs, the child processes
    assert [(str(path), name) for path, name in found if name not in known] == []


def test_the_entry_points_name_functions_of_the_wheel(installed: Path) -> None:
    text = next(installed.glob("*.dist-info")).joinpath("entry_points.txt").read_text()
    pairs = re.findall(r"^(\S+) = (\S+)$", text, re.MULTILINE)
    assert {name for name, _ in pairs} == set(PROJECT["scripts"])
    for name, value in pairs:
        point = EntryPoint(name, value, "console_scripts")
        place = installed.joinpath(*point.module.split("."))
        source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        assert f"\ndef {point.attr}(" in source.read_text()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from app import telemetry\n", "from commitlog import telemetry\n"),
        ("from spark_jobs.run import x  # app.cli\n", "from commitlog.spark.run import x  # commitlog.cli\n"),
        ("import app.cli.main as main\n", "import commitlog.cli.main as main\n"),
        (" if a:\n  from storage import x\n"[1:], "if a:\n  from commitlog.storage import x\n"),
        ('run("app.cli.up", \'spark_jobs.run\')\n', 'run("commitlog.cli.up", \'commitlog.spark.run\')\n'),
        ("app.log.warning(app.cli)\n", "app.log.warning(app.cli)\n"),  # a variable
        ('"my.app.cli app.unknown /app.cli"\n', '"my.app.cli app.unknown /app.cli"\n'),
        ('x = """app.cli\n  storage.log"""\n', 'x = """commitlog.cli\n  commitlog.storage.log"""\n'),
    ],
)  # fmt: skip
def test_names_of_modules_are_those_of_the_wheel(source: str, expected: str) -> None:
    assert Renaming(ROOT).source(source, "x.py") == expected


def test_an_import_that_binds_the_folder_is_refused() -> None:
    with pytest.raises(ValueError, match=r"x\.py:2"):
        Renaming(ROOT).source("\nimport app.cli\n", "x.py")


def distributions(*extras: str) -> set[str]:
    """Import names of the packages that an installation with `extras` asks for."""
    wanted = list(PROJECT["dependencies"])
    waiting = list(extras)
    while waiting:
        for requirement in PROJECT["optional-dependencies"][waiting.pop()]:
            inner = re.fullmatch(r"commitlog\[(\w+)\]", requirement)
            waiting += [inner[1]] if inner else []
            wanted += [] if inner else [requirement]
    names = (re.split(r"[=<>]", requirement)[0] for requirement in wanted)
    return {IMPORT_NAMES.get(name, name.replace("-", "_")) for name in names}


def foreign_imports(starts: tuple[str, ...], *, within_functions: bool) -> dict[str, str]:
    """Foreign packages that the modules of `starts` need, each with a module that imports it."""
    known, graph = modules(), import_graph()
    waiting = [name for name in known if any(f"{name}.".startswith(f"{start}.") for start in starts)]
    seen: set[str] = set()
    found = {}
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        waiting.extend(graph[name])
        for module, _ in imports_of(known[name], within_functions=within_functions):
            found[module.partition(".")[0]] = name
    own = {*PLACES, *sys.stdlib_module_names}
    return {module: name for module, name in found.items() if module not in own}


CLIENT = (
    "app.client.client",
    "app.client.operations",
    "app.client.known_nodes",
    "app.cli.main",
    "app.cli.status",
)
SERVER = ("app.serve", "app.cli.serve", "app.cli.up")
SPARK = ("spark_jobs.run", "spark_jobs.source", "spark_jobs.sink", "spark_jobs.upkeep", "spark_jobs.verify")


@pytest.mark.parametrize(
    ("starts", "extras"),
    [
        (CLIENT, ("client",)),
        (SERVER, ("server",)),
        (SPARK, ("spark",)),
        (("spark_jobs.notebook", "spark_jobs.analytics"), ("notebooks",)),
    ],
)
def test_an_extra_installs_what_its_modules_import(starts: tuple[str, ...], extras: tuple[str, ...]) -> None:
    wanted = foreign_imports(starts, within_functions=False)
    missing = {
        module: name for module, name in wanted.items() if module not in distributions(*extras) | OF_PYSPARK
    }
    assert missing == {}


def test_it_works_beside_packages_of_a_user(python: Path, tmp_path: Path) -> None:
    for name in ("app", "storage", "spark_jobs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("mine = True\n")
    code = (
        "import app, storage, spark_jobs, pickle, sys\n"
        "assert app.mine and storage.mine and spark_jobs.mine\n"
        "from commitlog.client import CommitlogClient, Record\n"
        "assert not {'pyarrow', 'numpy', 'pandas', 'pydantic'} & set(sys.modules)\n"
        "assert b'commitlog.client.records' in pickle.dumps(Record('x'))\n"
        "from commitlog.spark.session.archive import make_zip, package_root\n"
        "import zipfile, pathlib\n"
        "names = zipfile.ZipFile(make_zip(pathlib.Path('zip'))).namelist()\n"
        "assert 'commitlog/spark/run.py' in names and 'commitlog/storage/errors.py' in names\n"
        "assert all(name.startswith('commitlog/') for name in names)\n"
        "import commitlog.spark, importlib, pkgutil\n"
        "for module in pkgutil.walk_packages(commitlog.spark.__path__, 'commitlog.spark.'):\n"
        "    importlib.import_module(module.name)\n"
        "import pyspark_commitlog\n"
        "assert pyspark_commitlog.DefaultSource.name() == 'commitlog'\n"
        "from commitlog.spark.session.java import CACHE_FOLDER\n"
        "assert CACHE_FOLDER == pathlib.Path.home() / '.cache' / 'commitlog'\n"
        "from commitlog.cli.main import main\n"
        "sys.argv = ['commitlog', 'status', '--help']\n"
        "main()\n"
    )
    ran = subprocess.run(
        [python, "-c", code],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stderr
    assert "Usage: commitlog status" in ran.stdout


def test_the_demo_of_a_wheel_names_the_checkout(python: Path, tmp_path: Path) -> None:
    ran = subprocess.run(
        [python, "-m", "commitlog.cli.main", "demo"],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 1
    assert ran.stderr.startswith("commitlog: the demo runs in a checkout of the repository")
