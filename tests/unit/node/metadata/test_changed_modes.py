"""The mode of a log of the configuration file is fixed once the metadata have it."""

import asyncio
from pathlib import Path

import pytest

from app.errors import ConfigError
from app.node.broker import Broker
from app.settings.file import parse
from tests.support.event_loop import until
from tests.support.in_process import free_address, node_in_process


@pytest.mark.rule("C-10")
@pytest.mark.parametrize(("before", "after"), [("raft", "classic"), ("controller", "raft")])
def test_a_node_does_not_start_with_another_mode_of_a_log_in_its_file(
    tmp_path: Path, before: str, after: str
) -> None:
    """The log ran in the new mode, without the guarantees of the old one: a majority of Raft may lack what a
    SyncStateSet of one replica has acknowledged. Other settings of the file may change."""

    async def start(durability: str) -> None:
        log = {"name": "a", "replication": before, "durability": durability}
        async with node_in_process(tmp_path, logs=[log]) as node:
            await until(lambda: any(known.name == "a" for known in node.broker.metadata.metadata or ()))

    async def start_in_other_mode() -> None:
        listen, peer_listen = free_address(), free_address()
        node = {"id": "n1", "listen": listen, "peer_listen": peer_listen, "data": str(tmp_path / "n1")}
        logs = [{"name": "a", "replication": after}]
        broker = Broker(parse({"cluster": {"id": "alone"}, "nodes": [node], "logs": logs}, "n1"))
        try:
            await broker.start()
        finally:
            await broker.ha.transport.stop()

    asyncio.run(start("fsync"))
    asyncio.run(start("replicated"))
    with pytest.raises(ConfigError, match=f"log a: replication cannot be changed from {before} to {after}"):
        asyncio.run(start_in_other_mode())
