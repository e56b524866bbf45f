"""Tables of the logs at a node: their location in the settings, and what the node keeps of them."""

import asyncio
import gc
from pathlib import Path

import pytest

from app.api.routes.tables import KnownTables
from app.log.contract import Durability
from app.node.hosted_log import HostedLog
from app.settings.model import LogSettings, Replication
from app.tables.catalog import LogTables


@pytest.mark.parametrize("url", ["s3://bucket/t", "dbfs:/t", "file:/t", "abfss://c@a.dfs.core.windows.net/t"])
def test_a_url_is_no_folder_of_this_machine(url: str) -> None:
    """`dbfs:/t` was read as a folder below that of the process, and found empty."""
    assert KnownTables(url).root == url
    assert KnownTables("t").root == str(Path.cwd() / "t")


def test_nothing_is_kept_of_the_tables_of_deleted_logs(tmp_path: Path) -> None:
    """The files of a table in memory are some hundred bytes each, and logs may come and go for years."""

    async def read(known: KnownTables, name: str) -> None:
        settings = LogSettings(
            name=name, replication=Replication.RAFT, durability=Durability.FSYNC, replicas=("n1",)
        )
        assert await known.query(HostedLog(settings, 7), LogTables.all) == []

    known = KnownTables(str(tmp_path))
    for number in range(5):
        asyncio.run(read(known, f"log-{number}"))
    gc.collect()
    assert [len(each) for each in vars(known).values() if not isinstance(each, str)] == [0]
