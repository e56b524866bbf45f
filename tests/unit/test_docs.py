"""The documentation is true to the repository: generated pages are current, references and links resolve."""

import ast
import importlib.util
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from app import telemetry
from app.errors import PROBLEMS

ROOT = Path(__file__).parents[2]
NAMED_FILE = re.compile(r"(?<![\w./*{}$<>-])((?:[\w-]+/)*[\w-]+\.(?:py|md|java))(?![\w/*-])")
SECTION = re.compile(r"([\w./-]+\.md) §(\d+)")
HEADING = re.compile(r"^## (\d+)\. ", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
DIAGRAM_WIDTH = 140  # characters; docs/site.css has room for as many
BY_NAME = re.compile(r"pip install ['\"]?commitlog\b")
RULE = re.compile(r"\b([DCAHR]-\d\d)\b")


@cache
def tracked() -> tuple[Path, ...]:
    """Files of the repository, also new ones that are not ignored. Without git: what the tree holds."""
    asked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode == 0:
        return tuple(path for name in asked.stdout.splitlines() if (path := ROOT / name).is_file())
    found = (path for path in ROOT.rglob("*") if path.is_file())
    return tuple(path for path in found if not any(part.startswith(".v") for part in path.parts))


def written_in(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of the prose of a file: Markdown without code, comments and docstrings of Python."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield (
            1,
            re.sub(
                r"^```(?!\s*$).*?^```", lambda block: "\n" * block[0].count("\n"), text, flags=re.M | re.S
            ),
        )
        return
    if not names_something(text):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, str(node.value.value)
    if any(
        names_something(line.partition("#")[2]) for line in text.splitlines()
    ):  # else its tokens cost time
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def names_something(text: str) -> bool:
    return any(pattern.search(text) for pattern in (NAMED_FILE, SECTION, RULE))


@cache
def folders_with(name: str) -> tuple[Path, ...]:
    return tuple(path.parent for path in tracked() if path.name == name)


@cache
def texts(*suffixes: str) -> tuple[tuple[Path, int, str], ...]:
    paths = (path for path in tracked() if path.suffix in suffixes)
    return tuple((path, line, text) for path in paths for line, text in written_in(path))


def exists_from(path: Path, name: str) -> bool:
    """True if a file named in `path` exists.

    A path counts from any parent folder. A bare name is a file beside `path` or below, in the root
    folder, or the only one of its name in the same package.
    """
    if "/" in name:
        return any((folder / name).is_file() for folder in path.parents if folder.is_relative_to(ROOT))
    folders = folders_with(name)
    if ROOT in folders or any(folder.is_relative_to(path.parent) for folder in folders):
        return True
    package = ROOT / path.relative_to(ROOT).parts[0]
    return len([folder for folder in folders if folder.is_relative_to(package)]) == 1


def place(path: Path, line: int, text: str, at: int) -> str:
    return f"{path.relative_to(ROOT)}:{line + text[:at].count(chr(10))}"


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_generated_pages_are_current() -> None:
    for path, text in generator().pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `make docs`"


def test_a_setting_without_a_description_is_an_error() -> None:
    generate = generator()
    with pytest.raises(generate.MissingDescription, match="Undescribed"):
        generate.keys_of(Undescribed)


def test_every_file_that_a_text_names_exists() -> None:
    dead = {
        f"{place(path, line, text, found.start())} {found[1]}"
        for path, line, text in texts(".py", ".md")
        for found in NAMED_FILE.finditer(text)
        if not exists_from(path, found[1])
    }
    assert not dead, "\n".join(sorted(dead))


@pytest.mark.parametrize("package", ["app", "spark_jobs", "storage"])
def test_every_folder_is_in_the_readme_of_its_package(package: str) -> None:
    text = (ROOT / package / "README.md").read_text(encoding="utf-8")
    folders = {path.parent.relative_to(ROOT / package).as_posix() for path in (ROOT / package).rglob("*.py")}
    missing = {name for name in folders - {"."} if not re.search(rf"(?<![\w/]){name}[/`]", text)}
    assert not missing, "\n".join(sorted(missing))


def test_every_section_that_a_text_names_exists() -> None:
    dead = set()
    for path, line, text in texts(".py", ".md"):
        for found in SECTION.finditer(text):
            page = next((p for f in path.parents if (p := f / found[1]).is_file()), None)
            sections = () if page is None else HEADING.findall(page.read_text(encoding="utf-8"))
            if found[2] not in sections:
                dead.add(f"{place(path, line, text, found.start())} {found[0]}")
    assert not dead, "\n".join(sorted(dead))


def test_every_rule_that_a_text_names_exists() -> None:
    rules = set(RULE.findall((ROOT / "app" / "RULES.md").read_text(encoding="utf-8")))
    dead = {
        f"{place(path, line, text, found.start())} {found[1]}"
        for path, line, text in texts(".py", ".md")
        for found in RULE.finditer(text)
        if found[1] not in rules
    }
    assert not dead, "\n".join(sorted(dead))


def test_relative_links_resolve() -> None:
    dead = {
        f"{place(path, line, text, found.start())} {found[1]}"
        for path, line, text in texts(".md")
        for found in LINK.finditer(text)
        if not re.match(r"[a-z]+:|#", found[1]) and not (path.parent / found[1].partition("#")[0]).exists()
    }
    assert not dead, "\n".join(sorted(dead))


def test_the_diagrams_fit_the_pages_of_the_site() -> None:
    """A diagram that is cut off at the right is not one."""
    pages = [
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / path for path in ("app/README.md", "spark_jobs/README.md")),
    ]
    diagrams = [
        (page.name, line)
        for page in pages
        for block in page.read_text("utf-8").split("```")[1::2]
        for line in block.splitlines()
        if "──" in block
    ]
    assert diagrams
    assert [place for place in diagrams if len(place[1]) > DIAGRAM_WIDTH] == []


def test_no_page_and_no_error_installs_from_an_index_where_the_name_belongs_to_another_project() -> None:
    suffixes = {".md", ".service", ".yaml", ".py"}
    pages = [path for path in tracked() if path.suffix in suffixes and ROOT / "tests" not in path.parents]
    wrong = [str(path.relative_to(ROOT)) for path in pages if BY_NAME.search(path.read_text())]
    assert wrong == []


def test_every_metric_is_documented() -> None:
    names = {value for value in vars(telemetry).values() if str(value).startswith("commitlog_")}
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert names == set(re.findall(r"^\| `(commitlog_\w+)` \|", page, re.MULTILINE))


def test_every_alert_has_an_action_in_a_section_that_exists() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    rules = (ROOT / "conf" / "deploy" / "alerts.yaml").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\d+)\. (.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    rows = re.findall(r"^\| (`Commitlog\w+`.*?) \|.*\| (.*) \|$", page, re.MULTILINE)
    named = [name for names, _ in rows for name in re.findall(r"`(\w+)`", names)]
    assert sorted(named) == sorted(re.findall(r"- alert: (\w+)", rules))
    for names, action in rows:
        for alert in re.findall(r"`(Commitlog\w+)`", action):
            assert alert in named, names
        for number in re.findall(r"section (\d+)", action):
            assert number in sections, names
        for paragraph in re.findall(r"(\*\*[\w ]+)\*\*", action):
            number = re.findall(r"section (\d+)", action)[-1]
            assert re.search(rf"^(?:- )?{re.escape(paragraph)}", sections[number], re.MULTILINE), paragraph


def test_every_problem_and_route_is_documented() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z-]+)`", page))
    assert set(PROBLEMS) <= named
    routes = (ROOT / "app" / "api" / "routes").glob("*.py")
    tails = {
        found[1]
        for path in routes
        for found in re.finditer(
            r'^    "/v1/(?:logs/\{log\}|cluster)([^"]*)",$', path.read_text("utf-8"), re.MULTILINE
        )
    }
    assert len(tails) > 20
    assert not {tail for tail in tails if tail not in page}


@dataclass
class Undescribed:
    key: int = 1
