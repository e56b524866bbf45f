"""An append that must be answered by this very node is not carried elsewhere when the lead goes meanwhile."""

import asyncio
import json
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from app.api.append.call import AppendCall, AppendHead
from app.api.append.handler import AppendHandler
from app.api.append.parameters import parse_append_query
from app.api.http.messages import Response
from app.log.contract import AppendStream
from app.node.network.http_forwarder import NO_FORWARD
from app.node.tasks import TaskSupervisor
from app.settings.model import Limits


class LeadGoes:
    """A log that this node leads only until the body is decoded."""

    name, repair, leader_id = "default", None, "n2"
    driver: Any = None
    serving: Any = None
    looks = 0

    @property
    def leads(self) -> bool:
        self.looks += 1
        return self.looks == 1

    async def leadership_changed(self, _timeout_s: float) -> None:
        await asyncio.sleep(0)

    def while_led_by(self, _leader: str) -> nullcontext[None]:
        return nullcontext()


@pytest.mark.rule("D-29")
def test_an_append_of_a_stream_is_never_carried_without_the_settings_of_the_stream() -> None:
    """Its producer and conditions are not in a query: the next leader would store it without them."""
    carried: list[bytes] = []

    async def run() -> Response:
        supervisor = TaskSupervisor(lambda what, error: None)

        class Forwarder:
            async def send(self, _node: Any, _method: str, path: bytes, *_rest: Any) -> Any:
                carried.append(path)
                return SimpleNamespace(status=200, headers=[], body=b"{}", refusal=None)

        broker: Any = SimpleNamespace(
            settings=SimpleNamespace(
                limits=Limits(),
                http=SimpleNamespace(max_open_appends=10, max_open_bytes=1 << 30, leader_wait_ms=100),
            ),
            node=SimpleNamespace(id="n1", url="http://n1"),
            nodes=SimpleNamespace(find=lambda id: SimpleNamespace(id=id, url=f"http://{id}")),
            clock=SimpleNamespace(monotonic_ms=lambda: 0),
            meter=SimpleNamespace(answered=lambda *_: None),
            find=lambda _name: LeadGoes(),
            forwarder=Forwarder(),
            tasks=supervisor,
        )
        call = AppendCall(
            AppendHead(
                "default",
                "/v1/logs/default/records:stream",
                b"",
                [(b"content-type", b"application/json"), (NO_FORWARD, b"1")],
            ),
            json.dumps({"records": [{"value": "v" * 200_000}]}).encode(),
            b"r",
            parameters=parse_append_query(b"producer_id=p&producer_epoch=1&producer_sequence=7"),
            stream=AppendStream(),
        )
        answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        AppendHandler(broker).handle(call, answered.set_result)
        async with asyncio.timeout(10):
            return await answered

    response = asyncio.run(run())
    assert carried == []
    assert response.status == 421
