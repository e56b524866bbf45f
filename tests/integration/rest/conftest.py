"""The live page without a node."""

import shutil
from pathlib import Path

import pytest

from tests.support.browser import SCRIPTS


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the scripts of the live page."""
    shutil.copytree(SCRIPTS, tmp_path / "site")
    return tmp_path / "site"
