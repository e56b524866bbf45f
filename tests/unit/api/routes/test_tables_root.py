"""Locations of tables in the settings: folders of this machine, and URLs."""

from pathlib import Path

import pytest

from app.api.routes.tables import KnownTables


@pytest.mark.parametrize("url", ["s3://bucket/t", "dbfs:/t", "file:/t", "abfss://c@a.dfs.core.windows.net/t"])
def test_a_url_is_no_folder_of_this_machine(url: str) -> None:
    """`dbfs:/t` was read as a folder below that of the process, and found empty."""
    assert KnownTables(url).root == url
    assert KnownTables("t").root == str(Path.cwd() / "t")
