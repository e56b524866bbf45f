"""Run a notebook in Databricks source format from top to bottom, and write its output as one HTML page.

A cell can use `spark`, `display`, and `dbutils.widgets` as on Databricks; `# MAGIC %md` and `# MAGIC %sql`
cells work; figures of matplotlib become pictures in the page and PNG files beside it. A notebook that runs
here also runs on Databricks.
"""

import ast
import base64
import contextlib
import html
import io
import itertools
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from spark_jobs.interruption import INTERRUPTED, end_at_once

if __name__ == "__main__":
    end_at_once(INTERRUPTED)

import click

from app.errors import ConfigError
from app.extras import imports_of_extra

with imports_of_extra("notebooks", __name__):
    import matplotlib

    matplotlib.use("Agg")  # before pyplot: there is no screen

    import matplotlib.pyplot as plt
    from markdown_it import MarkdownIt
    from matplotlib.figure import Figure
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import NumericType

from spark_jobs.session.jars import JarsUnavailable
from spark_jobs.session.settings import given_options, settings_of, spark_options
from spark_jobs.session.spark_session import JavaNotFound, open_session
from spark_jobs.tables.conflicts import SPARK_ERRORS

HEADER = "# Databricks notebook source"
SEPARATOR = re.compile(r"^# COMMAND -+[ \t]*$", re.MULTILINE)
MAGIC = "# MAGIC"
MAX_ROWS = 100
DOTS_PER_INCH = 120


class NotebookFailed(RuntimeError):
    """A cell failed: the message has its number, and the traceback unless the error is a ConfigError. The
    page is written up to that cell."""


@dataclass(frozen=True)
class Cell:
    """One cell. kind: python, md or sql. line: of its first line in the file, from 1."""

    kind: str
    text: str
    line: int

    @property
    def heading(self) -> str:
        """The first heading of a Markdown cell; empty for any other one."""
        found = re.search(r"^#+ +(.*)", self.text, re.MULTILINE) if self.kind == "md" else None
        return found[1] if found else ""


@dataclass
class Widgets:
    """`dbutils.widgets`: each has a default, which a parameter of the run replaces."""

    parameters: Mapping[str, str]
    values: dict[str, str] = field(default_factory=dict)

    def text(self, name: str, default: str, label: str = "") -> None:
        self.values[name] = self.parameters.get(name, default)

    def dropdown(self, name: str, default: str, choices: list[str], label: str = "") -> None:
        value = self.parameters.get(name, default)
        if value not in choices:
            raise ValueError(f"widget {name} must be one of {', '.join(choices)}, got {value!r}")
        self.values[name] = value

    def get(self, name: str) -> str:
        return self.values[name]


class HtmlPage:
    """The HTML page while it is built, and the pictures."""

    def __init__(self, path: Path, title: str) -> None:
        self.path = path
        self.title = title
        self.parts: list[str] = []
        self.pictures: list[Path] = []

    def markdown(self, text: str) -> None:
        self.parts.append(MarkdownIt("commonmark").enable("table").render(text))

    def code(self, text: str) -> None:
        self.parts.append(f'<pre class="code">{html.escape(text)}</pre>')

    def text(self, text: str, *, kind: str = "out") -> None:
        if text.strip():
            self.parts.append(f'<pre class="{kind}">{html.escape(text.rstrip())}</pre>')

    def table(self, rows: DataFrame) -> None:
        found = rows.limit(MAX_ROWS + 1).collect()
        kinds = [' class="number"' if isinstance(each.dataType, NumericType) else "" for each in rows.schema]
        lines = [_table_row("th", rows.columns, kinds)]
        lines += [_table_row("td", map(_cell, row), kinds) for row in found[:MAX_ROWS]]
        note = f"the first {MAX_ROWS} rows" if len(found) > MAX_ROWS else "" if found else "no rows"
        caption = f"<caption>{note}</caption>" if note else ""
        self.parts.append(f"<table>{caption}{''.join(lines)}</table>")

    def figure(self, figure: Figure) -> None:
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, bbox_inches="tight")
        plt.close(figure)
        picture = self.path.with_name(f"{self.path.stem}-{len(self.pictures) + 1}.png")
        picture.write_bytes(buffer.getvalue())
        self.pictures.append(picture)
        data = base64.b64encode(buffer.getvalue()).decode()
        self.parts.append(f'<img alt="{html.escape(_title(figure))}" src="data:image/png;base64,{data}">')

    def write(self) -> None:
        title = html.escape(self.title)
        self.path.write_text(
            f'<!DOCTYPE html><html lang="en"><meta charset="utf-8">'
            f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>'
            f"<style>{STYLE}</style><main>{''.join(self.parts)}</main></html>\n",
            "utf-8",
        )


STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1d2433; background: #fff; margin: 0 }
main { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
pre { font: 13px/1.45 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere }
pre { padding: .6rem .8rem; border-radius: 4px }
pre.code { background: #f4f6fa }
pre.out { border-left: 3px solid #c9d2e3 }
pre.error { background: #fdecec; border-left: 3px solid #c0392b }
table { border-collapse: collapse; font-size: 14px; margin: .8rem 0; display: block; overflow-x: auto }
th, td { border-bottom: 1px solid #dde3ee; padding: .25rem .7rem; text-align: left; vertical-align: top }
th.number, td.number { text-align: right }
caption { text-align: left; color: #5b6780 }
img { max-width: 100%; margin: .6rem 0 }
"""


def read_cells(source: str) -> list[Cell]:
    """Return the cells of a notebook's source without empty ones. Raises ValueError for another kind of
    file."""
    if not source.startswith(HEADER):
        raise ValueError(f"not a notebook in source format: its first line is not {HEADER!r}")
    cells, line = [], 1
    start = 0
    for end in [*(match.span() for match in SEPARATOR.finditer(source)), (len(source), len(source))]:
        text = source[start : end[0]]
        if text.startswith(HEADER):
            text = text.replace(HEADER, "", 1)
        if text.strip():
            cells.append(_cell_of(text, line))
        line += source[start : end[1]].count("\n")
        start = end[1]
    return cells


def run_notebook(
    path: Path,
    parameters: Mapping[str, str],
    output_html: Path,
    spark: SparkSession,
    report: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Run every cell in order; return the PNG files of its figures. The page is at `output_html` in any case.

    parameters: values for widgets, by name. report: gets a line before each cell that computes. The cells can
    import from the notebook's folder and from the root of its repository, as on Databricks. Raises
    NotebookFailed at the first cell that fails.
    """
    cells = read_cells(path.read_text("utf-8"))
    output_html.parent.mkdir(parents=True, exist_ok=True)
    page = HtmlPage(output_html, path.stem)
    widgets = Widgets(parameters)
    names: dict[str, Any] = {"__name__": "__main__", "spark": spark, "display": _display_on(page)}
    names["dbutils"] = SimpleNamespace(widgets=widgets)
    heading = path.stem
    before = list(sys.path)
    sys.path += _import_folders(path)  # at the end: what is installed is stronger
    try:
        for number, cell in enumerate(cells, 1):
            heading = cell.heading or heading
            if cell.kind != "md":
                report(f"cell {number} of {len(cells)}: {heading}")
            _run_cell(cell, number, path, page, names, widgets)
    finally:
        sys.path[:] = before
        page.write()
    return page.pictures


def _import_folders(path: Path) -> list[str]:
    own = path.resolve().parent
    roots = (each for each in (own, *own.parents) if (each / ".git").exists())
    return [str(own), *map(str, itertools.islice(roots, 1))]


def _run_cell(
    cell: Cell, number: int, path: Path, page: HtmlPage, names: dict[str, Any], widgets: Widgets
) -> None:
    if cell.kind == "md":
        page.markdown(cell.text)
        return
    page.code(cell.text)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            if cell.kind == "sql":
                page.table(names["spark"].sql(with_parameters(cell.text, widgets.values)))
            else:
                _run_python(cell, path, names)
                _show_open_figures(page)
    except ConfigError as error:
        page.text(printed.getvalue())
        page.text(str(error), kind="error")
        raise NotebookFailed(f"{path.name}: cell {number} (line {cell.line}) failed: {error}") from error
    except Exception as error:
        page.text(printed.getvalue())
        page.text(traceback.format_exc(), kind="error")
        raise NotebookFailed(
            f"{path.name}: cell {number} (line {cell.line}) failed: {error}\n{traceback.format_exc()}"
        ) from error
    page.text(printed.getvalue())


def _run_python(cell: Cell, path: Path, names: dict[str, Any]) -> None:
    """Run a cell; the value of its last expression is shown, as notebooks do."""
    tree = ast.increment_lineno(ast.parse(cell.text), cell.line - 1)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(path), "exec"), names)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), str(path), "eval"), names)
        if value is not None:
            names["display"](value)


def with_parameters(sql: str, values: Mapping[str, str]) -> str:
    """Return the query with each `:name` of a widget as a literal: Delta's parser does not support
    parameters."""

    def literal(match: re.Match[str]) -> str:
        value = values.get(match[1])
        if value is None:
            return match[0]
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"

    return re.sub(r"(?<!:):([A-Za-z_]\w*)", literal, sql)


def _show_open_figures(page: HtmlPage) -> None:
    for number in plt.get_fignums():
        page.figure(plt.figure(number))


def _display_on(page: HtmlPage) -> Any:
    def display(value: object) -> None:
        """Show a DataFrame, a figure, or anything else as text."""
        if isinstance(value, DataFrame):
            page.table(value)
        elif isinstance(value, Figure):
            page.figure(value)
        else:
            page.text(str(value))

    return display


def _cell_of(text: str, line: int) -> Cell:
    leading = len(text) - len(text.lstrip("\n"))
    line += leading
    lines = text.strip("\n").splitlines()
    if not lines[0].startswith(MAGIC):
        return Cell("python", "\n".join(lines), line)
    content = "\n".join(line.removeprefix(MAGIC).removeprefix(" ") for line in lines)
    magic, _, rest = content.partition("\n")
    kind, _, first = magic.partition(" ")
    if kind not in ("%md", "%sql"):
        raise ValueError(f"line {line}: the magic {kind} is not supported")
    return Cell(kind.removeprefix("%"), f"{first}\n{rest}".strip("\n"), line)


def _table_row(tag: str, texts: Iterable[str], kinds: Iterable[str]) -> str:
    """Return a row of a table. kinds: the attribute of each column, with a space before it, or nothing."""
    cells = (f"<{tag}{kind}>{html.escape(text)}</{tag}>" for text, kind in zip(texts, kinds, strict=True))
    return f"<tr>{''.join(cells)}</tr>"


def _cell(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="auto" if value.microsecond % 1_000 else "milliseconds")
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else str(value)


def _title(figure: Figure) -> str:
    titles = (axes.get_title(loc=where) for axes in figure.axes for where in ("left", "center"))
    return next((title for title in titles if title), "figure")


def parse_parameters(given: Iterable[str]) -> Iterator[tuple[str, str]]:
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"{pair!r} is not NAME=VALUE")
        yield name, value


@click.command(
    epilog="\b\nExample:\n"
    "  python -m spark_jobs.notebook notebooks/02_watermarks_by_term.py \\\n"
    "      --output reports/watermarks.html tables=commitlog-data/tables log=orders"
)
@click.argument("notebook", type=click.Path(path_type=Path))
@click.argument("parameters", nargs=-1, metavar="[NAME=VALUE]...")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="HTML file; PNG files are written to its folder.",
)
@spark_options
def options(**given: Any) -> SimpleNamespace:
    """Run a notebook from top to bottom; NAME=VALUE sets a widget."""
    return SimpleNamespace(**given)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one notebook. Exit code 1 when a cell or Spark fails, 2 for what cannot be run."""
    given = given_options(options, "spark_jobs.notebook", arguments)
    try:
        read_cells(given.notebook.read_text("utf-8"))  # checked before Spark is started
        parameters = dict(parse_parameters(given.parameters))
        settings = settings_of(given)
    except (ConfigError, OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    report = _progress()
    try:
        report("Spark starts")
        with open_session("commitlog-notebook", settings) as spark:
            run_notebook(given.notebook, parameters, given.output, spark, report)
    except (NotebookFailed, *SPARK_ERRORS, ConfigError, JarsUnavailable, JavaNotFound) as error:
        sys.stderr.write(f"{error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    report(f"the page is {given.output}")
    return 0


def _progress() -> Callable[[str], None]:
    """Return a function that writes a line with the seconds since now to the standard error."""
    started = time.monotonic()

    def report(line: str) -> None:
        sys.stderr.write(f"{time.monotonic() - started:6.1f} s  {line}\n")
        sys.stderr.flush()

    return report


if __name__ == "__main__":
    sys.exit(main())
