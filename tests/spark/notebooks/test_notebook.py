"""The notebook runner: cells in order, what they show, and what happens when one fails."""

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from pyspark.sql import SparkSession

from app.errors import ConfigError
from spark_jobs import notebook as program
from spark_jobs import replay
from spark_jobs.notebook import HEADER, NotebookFailed, main, read_cells, run_notebook, with_parameters
from spark_jobs.session.requirements import require_cluster
from spark_jobs.tables.views import require_tables
from tests.support.cluster import free_ports
from tests.unit.cli.fake_service import Scripted, fake_service

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"
NOTEBOOK = """# Databricks notebook source
# MAGIC %md
# MAGIC # A title
# MAGIC with a | and **bold**

# COMMAND ----------

dbutils.widgets.text("name", "world", "Who")
dbutils.widgets.dropdown("size", "small", ["small", "large"])
print("hello " + dbutils.widgets.get("name"))

# COMMAND ----------

# MAGIC %sql
# MAGIC SELECT :name AS who, 1234567 AS number

# COMMAND ----------

import matplotlib.pyplot as plt
plt.plot([1, 2]); plt.title("A figure & more")
1 + 1
"""


def test_cells_have_kinds_texts_and_lines() -> None:
    cells = read_cells(NOTEBOOK)
    assert [(cell.kind, cell.line) for cell in cells] == [
        ("md", 2),
        ("python", 8),
        ("sql", 14),
        ("python", 19),
    ]
    assert cells[0].text == "# A title\nwith a | and **bold**"
    assert cells[2].text == "SELECT :name AS who, 1234567 AS number"
    assert read_cells("# Databricks notebook source\n") == []


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("print(1)", "not a notebook"),
        ("# Databricks notebook source\n# MAGIC %scala\n# MAGIC 1", "%scala is not"),
    ],
)
def test_source_that_the_runner_cannot_run_is_refused(source: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read_cells(source)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["no-such.py"], "No such file"),
        (["bare.py"], "not a notebook"),
        (["empty.py", "--conf", "no-such.toml"], "no-such.toml"),
        (["empty.py", "--master", "local[1]", "a=b", "c"], "'c' is not NAME=VALUE"),
    ],
)
def test_a_notebook_that_cannot_run_is_reported_before_spark_starts(
    given: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bare.py").write_text("print(1)")
    Path("empty.py").write_text("# Databricks notebook source\n")
    assert main(["--output", "page.html", *given]) == 2
    assert complaint in capsys.readouterr().err


def test_a_page_holds_text_tables_and_pictures(spark: SparkSession, tmp_path: Path) -> None:
    notebook = tmp_path / "shown.py"
    notebook.write_text(NOTEBOOK)
    pictures = run_notebook(notebook, {"name": "<you>"}, tmp_path / "out" / "page.html", spark)
    page = (tmp_path / "out" / "page.html").read_text()
    assert "<h1>A title</h1>" in page
    assert "hello &lt;you&gt;" in page
    assert '<td>&lt;you&gt;</td><td class="number">1,234,567</td>' in page
    assert 'alt="A figure &amp; more" src="data:image/png;base64,' in page
    assert '<pre class="out">2</pre>' in page
    assert [picture.name for picture in pictures] == ["page-1.png"]
    assert pictures[0].read_bytes().startswith(b"\x89PNG")
    assert "http" not in page


def test_a_table_shows_values_as_people_read_them_and_that_it_has_no_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    queries = (
        "true AS b, 1234.5 AS d, 1234.5D AS f, timestamp_millis(1500) AS t, null AS n, array(1234, 5) AS a",
        "1 WHERE false",
    )
    cells = "\n# COMMAND ----------\n".join(f"# MAGIC %sql\n# MAGIC SELECT {query}" for query in queries)
    notebook = tmp_path / "tables.py"
    notebook.write_text(f"{HEADER}\n{cells}\n")
    run_notebook(notebook, {}, tmp_path / "page.html", spark)
    page = (tmp_path / "page.html").read_text()
    values = ("True", "1,234.5", "1,234.5", "1970-01-01 00:00:01.500", "", "1,234, 5")
    kinds = ("", ' class="number"', ' class="number"', "", "", "")
    row = "".join(f"<td{kind}>{value}</td>" for kind, value in zip(kinds, values, strict=True))
    assert f"{row}</tr></table>" in page
    assert page.count("<caption>no rows</caption>") == page.count("<caption>") == 1


def run(source: str, folder: Path, spark: Any = None) -> str:
    notebook = folder / "failing.py"
    notebook.write_text(f"# Databricks notebook source\n{source}")
    with pytest.raises(NotebookFailed) as raised:
        run_notebook(notebook, {}, folder / "page.html", spark)
    return str(raised.value)


def test_a_failing_cell_fails_the_run_with_its_place_and_traceback(tmp_path: Path) -> None:
    cells = ["\nx = 1\n", "\n\nprint('so far')\nassert x == 2, 'x is not 2'\n", "\nprint(3)"]
    reported = run("# COMMAND ----------".join(cells), tmp_path)
    assert "cell 2 (line 6) failed: x is not 2" in reported
    assert 'failing.py", line 7' in reported
    page = (tmp_path / "page.html").read_text()
    assert "so far" in page
    assert "x is not 2" in page
    assert "print(3)" not in page


def test_a_missing_requirement_is_one_sentence(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    began_s = time.monotonic()
    reported = run(
        f"from spark_jobs.session.requirements import require_cluster\nrequire_cluster('{endpoint}')",
        tmp_path,
    )
    assert time.monotonic() - began_s < 5
    assert reported.startswith(
        f"failing.py: cell 1 (line 2) failed: no node of a cluster answers: {endpoint}"
    )
    assert "`commitlog up`" in reported
    assert "\n" not in reported
    assert "Traceback" not in (tmp_path / "page.html").read_text()


def test_one_node_that_answers_is_a_cluster() -> None:
    (port,) = free_ports(1)
    with fake_service(lambda _: Scripted(200, {"nodes": []})) as node:
        require_cluster(f"http://127.0.0.1:{port}, {node.url}")


@pytest.mark.parametrize("number", ["01", "04", "06"])
def test_a_notebook_without_a_cluster_ends_at_once(spark: SparkSession, tmp_path: Path, number: str) -> None:
    (notebook,) = NOTEBOOKS.glob(f"{number}_*.py")
    (port,) = free_ports(1)
    given = {"endpoint": f"http://127.0.0.1:{port}", "tables": str(tmp_path)}
    with pytest.raises(NotebookFailed, match=r"failed: no node of a cluster answers: .* `commitlog up`"):
        run_notebook(notebook, given, tmp_path / "page.html", spark)


def test_a_folder_without_the_tables_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spark: Any = None  # is not needed to find no table in a folder
    with pytest.raises(ConfigError, match="contains no table of log 'orders': set the folder"):
        require_tables(spark, tmp_path, "orders")
    monkeypatch.setattr(replay, "open_session", lambda *_: contextlib.nullcontext(spark))
    given = ["--endpoint", "http://127.0.0.1:1", "--tables", str(tmp_path), "--log", "orders"]
    assert replay.main(given) == 2
    assert "contains no table of log 'orders': set the folder" in capsys.readouterr().err


def test_each_cell_that_computes_is_reported_before_it_runs(tmp_path: Path) -> None:
    notebook = tmp_path / "reported.py"
    cells = ["", "x = 1", "# MAGIC %md\n# MAGIC ## A part\n# MAGIC text", "y = x", "raise ValueError(y)"]
    notebook.write_text("# Databricks notebook source\n" + "\n# COMMAND ----------\n".join(cells))
    reported: list[str] = []
    with pytest.raises(NotebookFailed):
        run_notebook(notebook, {}, tmp_path / "page.html", None, reported.append)  # type: ignore[arg-type]
    assert reported == ["cell 1 of 4: reported", "cell 3 of 4: A part", "cell 4 of 4: A part"]


def test_the_program_reports_its_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "open_session", lambda *_: contextlib.nullcontext(None))
    notebook = tmp_path / "short.py"
    notebook.write_text("# Databricks notebook source\nx = 1")
    assert main(["--output", str(tmp_path / "page.html"), str(notebook)]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" s  ")[1] for line in lines] == [
        "Spark starts",
        "cell 1 of 1: short",
        f"the page is {tmp_path / 'page.html'}",
    ]


def test_a_widget_takes_only_its_choices(tmp_path: Path) -> None:
    assert "must be one of a, b, got 'c'" in run('dbutils.widgets.dropdown("w", "c", ["a", "b"])', tmp_path)


def test_widgets_stand_in_a_query_as_literals() -> None:
    values = {"who": "it's \\ me"}
    assert with_parameters("SELECT :who, a::int, :other", values) == "SELECT 'it\\'s \\\\ me', a::int, :other"


def test_figures_are_shown_once(tmp_path: Path) -> None:
    notebook = tmp_path / "figures.py"
    notebook.write_text(
        "# Databricks notebook source\nimport matplotlib.pyplot as plt\n"
        "figure, axes = plt.subplots()\ndisplay(figure)"
    )
    assert len(run_notebook(notebook, {}, tmp_path / "page.html", None)) == 1  # type: ignore[arg-type]
    assert Figure.__module__ in sys.modules


def test_cells_import_from_their_folder_and_from_the_root_of_the_repository(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    folder = tmp_path / "notebooks" / "more"
    folder.mkdir(parents=True)
    (tmp_path / "of_the_repository.py").write_text("WORD = 'root'\n")
    (folder / "of_the_folder.py").write_text("WORD = 'beside'\n")
    notebook = folder / "imports.py"
    notebook.write_text(
        "# Databricks notebook source\nimport of_the_folder, of_the_repository\n"
        "print(of_the_repository.WORD, of_the_folder.WORD)\n"
    )
    before, spark = list(sys.path), None
    run_notebook(notebook, {}, tmp_path / "page.html", spark)  # type: ignore[arg-type]  # no cell uses it
    assert "root beside" in (tmp_path / "page.html").read_text()
    assert sys.path == before
