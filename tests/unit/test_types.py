"""The whole code base passes mypy: a name that was changed in one place and not in another is found here."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(600)
def test_the_whole_code_base_passes_mypy() -> None:
    """The cache is that of `make check`."""
    found = subprocess.run(
        [sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr
