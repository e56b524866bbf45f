"""Runs a notebook in Databricks source format, top to bottom, and writes what it shows as one HTML file.

A cell is Python, `%md` or `%sql`. It finds `spark`, `dbutils.widgets`, `display` and `displayHTML`, as in Databricks;
figures of matplotlib are kept as PNG files beside the HTML, and in it. A cell that fails ends the run.
"""

import ast
import base64
import contextlib
import html
import io
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from markdown_it import MarkdownIt
from pyspark.sql import DataFrame, SparkSession

HEADER = "# Databricks notebook source"
SEPARATOR = "# COMMAND ----------"
MAGIC = "# MAGIC"
MAX_ROWS = 1_000  # of a DataFrame that is displayed
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24 }
pre { background: #f4f6f8; padding: .75rem; overflow-x: auto; font-size: 13px; border-radius: 4px }
table { border-collapse: collapse; font-size: 14px } th, td { border: 1px solid #d5dae0; padding: .2rem .6rem }
th { background: #f4f6f8; text-align: left } img { max-width: 100% } .failed { color: #a4161a }
"""


class NotebookFailed(RuntimeError):
    """A cell raised; the message names the notebook and the cell and holds the traceback."""


@dataclass(frozen=True)
class Cell:
    """language: python, md or sql."""

    language: str
    source: str


@dataclass
class NotebookRun:
    """What came of a run: the page, and the figures in their order."""

    html: Path
    figures: list[Path] = field(default_factory=list)


def parse_notebook(text: str) -> list[Cell]:
    """The cells of a notebook. Raises ValueError for another format or an unknown magic."""
    first, _, rest = text.partition("\n")
    if first.strip() != HEADER:
        raise ValueError(f"a notebook begins with {HEADER!r}")
    parts = (part.strip("\n") for part in rest.split(SEPARATOR))
    return [_cell(part) for part in parts if part.strip()]


def _cell(part: str) -> Cell:
    lines = part.splitlines()
    if not lines[0].startswith(MAGIC):
        return Cell("python", part)
    plain = [line.removeprefix(MAGIC).removeprefix(" ") for line in lines]
    language, _, first = plain[0].removeprefix("%").partition(" ")
    if language not in ("md", "sql"):
        raise ValueError(f"unknown magic %{language}")
    return Cell(language, "\n".join([first, *plain[1:]]).strip())


class Widgets:
    """`dbutils.widgets`: parameters of the run go before the defaults of the notebook."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._values = dict(parameters)

    def text(self, name: str, default: str, label: str = "") -> None:
        self._values.setdefault(name, default)

    def get(self, name: str) -> str:
        """Raises KeyError for a widget that the notebook has not made."""
        return self._values[name]


class DbUtils:
    def __init__(self, widgets: Widgets) -> None:
        self.widgets = widgets


class Page:
    """The HTML as it grows."""

    def __init__(self, path: Path, title: str) -> None:
        self.path = path
        self.figures: list[Path] = []
        self._title = title
        self._parts: list[str] = []

    def markdown(self, source: str) -> None:
        self._parts.append(MarkdownIt("commonmark").enable("table").render(source))

    def code(self, source: str) -> None:
        self._parts.append(f"<pre>{html.escape(source)}</pre>")

    def text(self, text: str, kind: str = "") -> None:
        self._parts.append(f'<pre class="{kind}">{html.escape(text)}</pre>')

    def raw(self, fragment: str) -> None:
        self._parts.append(fragment)

    def show(self, value: Any) -> None:
        """A DataFrame as a table of at most MAX_ROWS rows, anything else as text."""
        if isinstance(value, DataFrame):
            value = value.limit(MAX_ROWS).toPandas()
        if isinstance(value, pd.DataFrame):
            self.raw(value.to_html(index=False, border=0, max_rows=MAX_ROWS))
        else:
            self.text(str(value))

    def keep_figures(self) -> None:
        """Take over, and close, every open figure."""
        from matplotlib import pyplot

        for number in pyplot.get_fignums():
            figure = pyplot.figure(number)
            picture = io.BytesIO()
            figure.savefig(picture, format="png", dpi=110, bbox_inches="tight")
            path = self.path.with_name(f"{self.path.stem}-{len(self.figures) + 1}.png")
            path.write_bytes(picture.getvalue())
            self.figures.append(path)
            self.raw(f'<img src="data:image/png;base64,{base64.b64encode(picture.getvalue()).decode()}">')
            pyplot.close(figure)

    def write(self) -> None:
        body = "\n".join(self._parts)
        head = f'<meta charset="utf-8"><title>{html.escape(self._title)}</title><style>{STYLE}</style>'
        self.path.write_text(f"<!doctype html>\n<html><head>{head}</head><body>\n{body}\n</body></html>\n")


def run_notebook(path: Path, parameters: Mapping[str, str], output_html: Path, spark: SparkSession) -> NotebookRun:
    """Run the notebook at `path`; parameters: values of its widgets.

    The page is written in any case. Raises NotebookFailed for the first cell that fails.
    """
    matplotlib.use("Agg")
    cells = parse_notebook(path.read_text())
    output_html.parent.mkdir(parents=True, exist_ok=True)
    page = Page(output_html, path.stem)
    names: dict[str, Any] = {
        "spark": spark,
        "dbutils": DbUtils(Widgets(parameters)),
        "display": page.show,
        "displayHTML": page.raw,
    }
    try:
        for number, cell in enumerate(cells, start=1):
            try:
                _run_cell(cell, f"{path.name}, cell {number}", names, page)
            except Exception as error:
                page.text(traceback.format_exc(), "failed")
                raise NotebookFailed(f"{path.name}, cell {number}:\n{traceback.format_exc()}") from error
            finally:
                page.keep_figures()
    finally:
        page.write()
    return NotebookRun(output_html, page.figures)


def _run_cell(cell: Cell, name: str, names: dict[str, Any], page: Page) -> None:
    if cell.language == "md":
        page.markdown(cell.source)
        return
    page.code(cell.source)
    if cell.language == "sql":
        page.show(names["spark"].sql(cell.source))
        return
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        value = _execute(cell.source, name, names)
    if printed.getvalue():
        page.text(printed.getvalue())
    if value is not None:
        page.show(value)


def _execute(source: str, name: str, names: dict[str, Any]) -> Any:
    """Run the statements; the value of the last one, if it is an expression."""
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), name, "eval"), names)
