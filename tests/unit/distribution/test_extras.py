"""A program that lacks a library names the extra of the wheel that installs it."""

import subprocess
import sys

import pytest

PROGRAM = (
    "import runpy, sys; missing, module = sys.argv[1:3]; sys.modules[missing] = None; sys.argv[1:] = []\n"
    "runpy.run_module(module, run_name='__main__', alter_sys=True)"
)


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("spark_jobs.notebook", "matplotlib", "notebooks"),
        ("spark_jobs.notebook", "markdown_it", "notebooks"),
        ("spark_jobs.notebook", "pyspark", "notebooks"),
        ("spark_jobs.run", "pyspark", "spark"),
        ("spark_jobs.replay", "pyspark", "spark"),
        ("spark_jobs.upkeep", "pyspark", "spark"),
        ("spark_jobs.verify", "pyarrow", "spark"),
        ("spark_jobs.package", "pydantic", "spark"),
    ],
)
def test_a_program_without_its_library_names_the_extra(module: str, missing: str, extra: str) -> None:
    command = [sys.executable, "-c", PROGRAM, missing, module]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    advice = f"which is not installed: pip install 'PATH_OF_THE_WHEEL[{extra}]'"
    assert done.stderr.strip() == f"this program needs {missing}, {advice}"


def test_a_module_that_another_one_imports_raises_as_usual() -> None:
    program = "import sys; sys.modules['matplotlib'] = None\nimport spark_jobs.notebook"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert "ModuleNotFoundError" in done.stderr
