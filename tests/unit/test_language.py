"""Texts use plain technical English: error pages, messages, help, OpenAPI, docstrings, comments."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import click
import pytest
from fastapi import FastAPI

from app.api.append.plain_route import PlainRoute
from app.cli.main import cli
from app.errors import PROBLEMS, CommitlogError
from app.main import _DESCRIPTION, _PARTS

ROOT: Final = Path(__file__).parents[2]
MESSAGES_IN: Final = (
    "app/api",
    "app/cli",
    "app/client",
    "app/controller",
    "app/errors",
    "app/ha",
    "app/local",
    "app/log",
    "app/node",
    "app/raft",
    "app/schemas",
    "app/settings",
    "spark_jobs",
    "storage",
)
REFUSALS_IN: Final = ("app/api", "app/client", "app/controller", "app/errors", "app/log")
BARE_LOG: Final = re.compile(r"\blog \{[^}!]*\}")
LONGEST_REPORT: Final = 20
REFUSED: Final = re.compile(
    r"\b(tells?|told|says?|said|anew|whoever|nobody|somebody|stands? (?:at|in)|stood (?:at|in)"
    r"|(?<!there )is no(?= \w)|for ever|mend(?:s|ed)?|stranger|news|so long)\b(?! (?:longer|more than))",
    re.IGNORECASE,
)
FIRST_WORDS: Final = re.compile(r"(What|Who|Whose|Whether|Where|Of)\b")
PLAIN_CODE: Final = ("app", "spark_jobs", "storage", "tests")
REFUSED_IN_CODE: Final = re.compile(
    r"\b(tells?|told|says?|said|anew|whoever|nobody|somebody|for ever|mend(?:s|ed)?|strangers?|news"
    r"|so long as|stands? (?:at|in|behind|for)|stood (?:at|in|behind|for))\b",
    re.IGNORECASE,
)
REFUSED_IN_NAMES: Final = re.compile(
    r"test_(what|who|whose|whoever|of)_|_(tells?|told|says?|said|anew|whoever|nobody|somebody|for_ever|mend(?:s|ed)?"
    r"|strangers?|news|so_long_as|goes_on)(_|$)"
)
PLAIN_NAMES: Final = ("app", "spark_jobs", "storage")
REFUSED_IN_IDENTIFIERS: Final = re.compile(
    r"(?:^|_)(look|looks|looked|tells?|told|says?|said|news|whoever|nobody|somebody|strangers?)(?!_up)(?=_|$)"
)
PROMISE: Final = re.compile(r"-> None:(?:\s|#.*)*[rR]?[\"']+\s*(?:Return|Yield)\b(?! None)")  # at least
WORD_OF_A_NAME: Final = re.compile(r"(?:\b|_)(?:look|t[eo]l|sa[iy]|news|whoever|nobody|somebody|stranger)")
FIRST_IN_CODE: Final = re.compile(r"(What|Who|Whose|Whether|Where|Of)\b[^?]*(?:\.|$)")
NAMES: Final = re.compile(r"`[^`]*`|\b\w+: |\w+\([^)]*\)")  # code, parameters and fields keep their names
STATEMENT_BEGINS_AFTER: Final = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def complaints(texts: Iterator[tuple[str, str]]) -> list[str]:
    """The texts with a word that LANGUAGE refuses, or with a first word that no sentence here begins with."""
    found = []
    for place, text in texts:
        plain = " ".join(text.split())
        if word := REFUSED.search(plain) or FIRST_WORDS.match(plain):
            found.append(f"{place}: {word.group()!r} in {plain!r}")
    return found


def pages() -> Iterator[tuple[str, str]]:
    yield CommitlogError.__name__, CommitlogError.__doc__ or ""
    for code, problem in PROBLEMS.items():
        yield problem.__name__, problem.__doc__ or ""
        yield code, problem.title


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    """The help of a command, of its options, and of its subcommands."""
    place = context.command_path
    yield place, command.help or ""
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield f"{place} {parameter.opts[0]}", parameter.help or ""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from commands(child, click.Context(child, info_name=name, parent=context))


def openapi() -> Iterator[tuple[str, str]]:
    """The summaries and descriptions of the document, from the routes alone: no node runs."""
    app = FastAPI(description=_DESCRIPTION)
    app.include_router(PlainRoute.router(cast(PlainRoute, SimpleNamespace())))
    for part in _PARTS:
        app.include_router(part.router)
    document = app.openapi()
    assert len(document["paths"]) > LONGEST_REPORT
    yield from described("", document)


def described(place: str, node: Any) -> Iterator[tuple[str, str]]:
    if isinstance(node, list):
        for item in node:
            yield from described(place, item)
    elif isinstance(node, dict):
        for name, value in node.items():
            if name in ("summary", "description") and isinstance(value, str):
                yield f"{place}/{name}", value
            elif name != "example":
                yield from described(f"{place}/{name}", value)


def messages() -> Iterator[tuple[str, str]]:
    """Yield the literals of every `raise`, and of every check that raises its second argument."""
    for folder in MESSAGES_IN:
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.stmt | ast.expr):
                    for text in raised(node):
                        yield f"{file.relative_to(ROOT)}:{node.lineno}", text


def raised(node: Any) -> Iterator[str]:
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        values = [*node.exc.args, *(keyword.value for keyword in node.exc.keywords)]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "check":
        values = node.args[1:]
    else:
        return
    for value in values:
        yield from literals(value)


def literals(value: ast.expr) -> Iterator[str]:
    """The texts of an expression; what an f-string inserts is `…`."""
    if isinstance(value, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in value.values)
    elif isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
    elif isinstance(value, ast.Tuple):
        for item in value.elts:
            yield from literals(item)


def prose_of(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield (line, text, is a docstring) of docstrings and comments, without names of code."""
    before = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_docstring = token.type == tokenize.STRING and before in STATEMENT_BEGINS_AFTER
        if is_docstring or token.type == tokenize.COMMENT:
            text = token.string.strip('"# ')
            yield token.start[0], " ".join(NAMES.sub(" ", text).split()), is_docstring
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            before = token.type


def code_complaints(place: str, source: str) -> list[str]:
    """Return the docstrings and comments with a word that `REFUSED_IN_CODE` or `FIRST_IN_CODE` refuses."""
    found = []
    for line, text, is_docstring in prose_of(source):
        word = REFUSED_IN_CODE.search(text) or (FIRST_IN_CODE.match(text) if is_docstring else None)
        if word:
            found.append(f"{place}:{line}: {word.group()!r} in {text!r}")
    return found


def client_errors() -> Iterator[tuple[str, str]]:
    for name in ("app/client/errors.py", "spark_jobs/errors.py", "app/errors/base.py"):
        for node in ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield f"{name}:{node.name}", ast.get_docstring(node) or ""


@pytest.mark.parametrize(
    "collect",
    [
        pages,
        lambda: commands(cli, click.Context(cli, info_name="commitlog")),
        openapi,
        messages,
        client_errors,
    ],
    ids=["problem pages", "help", "openapi", "messages", "error classes"],
)
def test_texts_for_users_are_plain_technical_english(collect: Any) -> None:
    texts = list(collect())
    assert len(texts) > LONGEST_REPORT
    assert complaints(iter(texts)) == []


@pytest.mark.parametrize("folder", PLAIN_CODE)
def test_docstrings_and_comments_are_plain_technical_english(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    found = [
        complaint
        for file in files
        for complaint in code_complaints(str(file.relative_to(ROOT)), file.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def test_documents_are_plain_technical_english() -> None:
    """Outside of code: fenced blocks and names in backquotes."""
    found = []
    for file in sorted(ROOT.glob("*.md")) + [
        page for folder in ("docs", *PLAIN_CODE) for page in sorted((ROOT / folder).rglob("*.md"))
    ]:
        prose = re.sub(r"^ *```.*?^ *```|`[^`\n]*`", " ", file.read_text(encoding="utf-8"), flags=re.M | re.S)
        for paragraph in re.split(r"\n\s*\n", prose):
            if word := REFUSED_IN_CODE.search(paragraph):
                found.append(
                    f"{file.relative_to(ROOT)}: {word.group()!r} in {' '.join(paragraph.split())[:200]!r}"
                )
    assert not found, "\n".join(found)


def test_refusals_quote_the_name_of_a_log() -> None:
    """`log 'orders' is being deleted`: one form in all problem documents."""
    bare = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for folder in REFUSALS_IN
        for file in sorted((ROOT / folder).rglob("*.py"))
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if BARE_LOG.search(line)
    ]
    assert bare == []


def test_a_docstring_promises_a_result_only_where_there_is_one() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno} {node.name}"
        for file, tree in trees(PLAIN_CODE, PROMISE)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (isinstance(node.returns, ast.Constant) and node.returns.value is None)
        and re.match(r"(Return|Yield)\b(?! None)", ast.get_docstring(node) or "")
    ]
    assert not found, "\n".join(found)


def test_names_of_tests_are_plain_technical_english() -> None:
    found = [
        f"{file.relative_to(ROOT)}: {node.name}"
        for file, tree in trees(("tests",), REFUSED_IN_NAMES)
        for node in ast.walk(tree)
        if file.name.startswith("test_")
        and isinstance(node, ast.FunctionDef)
        and REFUSED_IN_NAMES.search(node.name)
    ]
    assert not found, "\n".join(found)


def test_identifiers_of_the_code_are_plain_english() -> None:
    found = [
        f"{file.relative_to(ROOT)}: {name}"
        for file, tree in trees(PLAIN_NAMES, WORD_OF_A_NAME)
        for name in sorted(names_in(tree))
        if REFUSED_IN_IDENTIFIERS.search(name)
    ]
    assert not found, "\n".join(found)


def trees(folders: Sequence[str], hint: re.Pattern[str]) -> Iterator[tuple[Path, ast.Module]]:
    """Yield the trees of the files whose text has the hint: to parse all of them takes seconds."""
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*.py")):
            text = file.read_text(encoding="utf-8")
            if hint.search(text):
                yield file, ast.parse(text)


def names_in(tree: ast.Module) -> set[str]:
    """Return the names that a module gives: of functions, classes, parameters, variables and attributes."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
            case ast.arg(arg=name):
                names.add(name)
    return names


@pytest.mark.parametrize(
    ("source", "is_refused"),
    [
        ('"""What a node knows."""', True),
        ('"""Which node leads?"""', False),
        ('"""What did each node acknowledge?"""', False),
        ("x = 1  # nobody waits", True),
        ("x = 1  # `tell` and told: are names, say(x) is a call", False),
        ("x = 'nobody'  # a value", False),
    ],
)
def test_the_check_of_code_sees_docstrings_and_comments_alone(source: str, is_refused: bool) -> None:
    assert bool(code_complaints("here", f"{source}\n")) is is_refused


@pytest.mark.parametrize(
    "text",
    [
        "the node tells its peers",
        "nobody leads",
        "it stands at index 7",
        "kept for ever",
        "this is no append",
        "Whether the process answers",
        "Of the record",
        "a repair that mends it",
    ],
)
def test_the_check_refuses_its_words(text: str) -> None:
    assert complaints(iter([("here", text)]))


@pytest.mark.parametrize("text", ["the log is no longer there", "Office hours", "the following records"])
def test_the_check_passes_other_words(text: str) -> None:
    assert not complaints(iter([("here", text)]))
