"""A peer that is a member of no log, as a removed node with its certificate or the cluster secret."""

import asyncio
import random
from pathlib import Path
from typing import Any

from app.controller.commands import DeleteLog
from app.controller.messages import CommandRequest
from app.node.network.append_messages import DECLINED, CarriedAnswers, CarriedAppend, CarriedAppends
from app.node.network.audit_messages import AuditRequest
from app.node.network.group_claims import GroupClaim
from app.node.network.peer_host import PeerIdentity
from app.node.network.peer_transport import PeerTransport
from app.node.network.repair_messages import DigestRequest, FetchRequest
from tests.support.event_loop import until
from tests.support.in_process import InProcess, free_address, node_in_process


class Outsider:
    """PeerHost of node n9, which knows the address of n1."""

    def __init__(self, node: InProcess) -> None:
        self.received: list[Any] = []
        own, settings = free_address(), node.broker.settings
        identity = PeerIdentity(cluster_id=settings.cluster_id, node_id="n9", listen=own, address=own)
        peers = [("n1", settings.node.peer_address)]
        self.transport = PeerTransport(identity, peers, self, random.Random(1))

    def deliver(self, _source: str, _log_id: int, message: Any) -> None:
        self.received.append(message)

    def peer_lost(self, peer_id: str) -> None:
        pass

    def connection_lost(self, peer_id: str) -> None:
        pass

    def is_member(self, peer_id: str) -> bool:
        return True

    def forget_peer(self, peer_id: str) -> bool:
        return False

    def claims(self) -> dict[str, GroupClaim]:
        return {}

    def claimed(self, peer_id: str, claims: dict[str, GroupClaim]) -> None:
        pass

    def ha_address(self) -> str | None:
        return None


def test_an_outsider_gets_no_records_and_changes_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_in_process(tmp_path, security={"audit": True}) as node:
            url = "/v1/logs/default/records"
            assert (await node.client.post(url, json={"value": "kept"})).status_code == 200
            log_id = node.broker.lookup.find("default").log_id
            outsider = Outsider(node)
            await outsider.transport.start()
            try:
                await until(lambda: outsider.transport.peer_version("n1") is not None)
                command = DeleteLog("default", None, 0, "token")
                for message in (
                    FetchRequest(1, 0, 10),
                    DigestRequest(2, 0, 1),
                    AuditRequest(3, "n1-forged", 0, (b"{}",)),
                    CommandRequest(4, command, 1 << 60),
                    CarriedAppends((CarriedAppend(5, 1_000, b"head", b"id", b"forged"),)),
                ):
                    outsider.transport.send("n1", log_id, message)
                await until(lambda: bool(outsider.received))
                (answer,) = outsider.received
                assert isinstance(answer, CarriedAnswers)
                assert [each.status for each in answer.answers] == [DECLINED]
                assert node.broker.refused_calls == 4
                assert node.broker.metadata.server.is_active  # it believes no index of an outsider
                values = [each["value"] for each in (await node.client.get(url)).json()["records"]]
                assert values == ["kept"]
                assert (await node.client.get("/v1/logs/__audit/tail")).status_code == 404
            finally:
                await outsider.transport.stop()

    asyncio.run(run())
