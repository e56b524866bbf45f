"""An append that must be answered by this very node, or whose outcome is unknown, is not sent to another."""

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
from app.errors import NoLeader, NotLeader
from app.log.contract import AppendStream
from app.node.network.http_forwarder import NO_FORWARD, Lost, Relayed
from app.node.tasks import TaskSupervisor
from app.settings.model import Limits, Replication


class LeadGoes:
    """A log that this node leads only until the body is decoded."""

    name, repair, leader_id = "default", None, "n2"
    settings = SimpleNamespace(replication=Replication.CLASSIC, replicas=("n2",))
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


class Forwarder:
    """Records what is sent to another node. Each call is acknowledged."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    async def send(self, _node: Any, _method: str, path: bytes, *_rest: Any) -> Any:
        self.sent.append(path)
        return Relayed(200, [], b"{}")


def answer_to(call: AppendCall, hosted: Any, forwarder: Forwarder, carrier: Any = None) -> Response:
    async def run() -> Response:
        broker: Any = SimpleNamespace(
            settings=SimpleNamespace(
                limits=Limits(),
                http=SimpleNamespace(max_open_appends=10, max_open_bytes=1 << 30, leader_wait_ms=100),
            ),
            node=SimpleNamespace(id="n1", url="http://n1"),
            nodes=SimpleNamespace(find=lambda id: SimpleNamespace(id=id, url=f"http://{id}")),
            clock=SimpleNamespace(monotonic_ms=lambda: 0),
            meter=SimpleNamespace(answered=lambda *_: None),
            lookup=SimpleNamespace(find=lambda _name: hosted),
            forwarder=forwarder,
            carrier=carrier,
            tasks=TaskSupervisor(lambda what, error: None),
        )
        answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        AppendHandler(broker).handle(call, answered.set_result)
        async with asyncio.timeout(10):
            return await answered

    return asyncio.run(run())


@pytest.mark.rule("D-29")
def test_an_append_of_a_stream_is_never_carried_without_the_settings_of_the_stream() -> None:
    """Its producer and conditions are not in a query: the next leader would store it without them."""
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
    forwarder = Forwarder()
    response = answer_to(call, LeadGoes(), forwarder)
    assert forwarder.sent == []
    assert response.status == 421


class LedElsewhere:
    """A log of this node that n2 leads."""

    name, repair, leads, driver, leader_id = "default", None, False, None, "n2"
    serving: Any = SimpleNamespace(leader_id="n2", committed_index=1, term=3)
    no_leader = NoLeader()

    async def leadership_changed(self, _timeout_s: float) -> None:
        await asyncio.sleep(0)

    def while_led_by(self, _leader: str) -> nullcontext[None]:
        return nullcontext()


class LosesLead(LedElsewhere):
    """A log whose driver finds out that n2 leads."""

    leads = True

    def __init__(self) -> None:
        self.driver = SimpleNamespace(
            append=lambda _request, done: done(NotLeader("n2")),
            state=SimpleNamespace(schemas=SimpleNamespace(newest=None)),
        )


@pytest.mark.rule("D-29")
def test_a_client_that_wants_no_forward_gets_the_url_of_the_leader_that_the_driver_names() -> None:
    headers = [(b"content-type", b"application/octet-stream"), (NO_FORWARD, b"1")]
    head = AppendHead("default", "/v1/logs/default/records", b"", headers)
    forwarder = Forwarder()
    response = answer_to(AppendCall(head, b"v", b"r"), LosesLead(), forwarder)
    problem = json.loads(response.body)
    assert (response.status, problem["leader"], problem["leader_url"]) == (421, "n2", "http://n2")
    assert forwarder.sent == []


@pytest.mark.parametrize("name", [b"timeout_ms", b"timeout%5Fms", b"%74imeout_ms"])
def test_a_forwarded_append_has_the_rest_of_its_time_and_its_other_parameters(name: bytes) -> None:
    """A leader refuses a query that gives the time twice."""

    class CannotSend:
        def send(self, *_given: Any) -> bool:
            return False

    query = b"acks=leader&" + name + b"=9000&&match_index=0"
    content_type = (b"content-type", b"application/octet-stream")
    head = AppendHead("default", "/v1/logs/default/records", query, [content_type])
    forwarder = Forwarder()
    assert answer_to(AppendCall(head, b"v", b"r"), LedElsewhere(), forwarder, CannotSend()).status == 200
    (path,) = forwarder.sent
    assert path == b"/v1/logs/default/records?acks=leader&match_index=0&timeout_ms=9000"
    parameters = parse_append_query(path.partition(b"?")[2])
    assert (parameters.timeout_ms, parameters.match_index) == (9_000, 0)


@pytest.mark.parametrize(
    ("headers", "query", "status", "sent"),
    [
        ([], b"", 504, 0),
        ([(b"idempotency-key", b"k")], b"", 200, 1),
        ([], b"producer_id=p&producer_epoch=0&producer_sequence=0", 200, 1),
    ],
    ids=["plain", "with a key", "of a producer"],
)
def test_an_append_whose_answer_was_lost_is_sent_again_only_if_a_repeat_is_recognized(
    headers: list[tuple[bytes, bytes]], query: bytes, status: int, sent: int
) -> None:
    """The leader may have stored it: a second attempt of any other would store it twice."""

    class LosesAnswers:
        def send(self, *given: Any) -> bool:
            given[-1](Lost("n2"))
            return True

    content_type = (b"content-type", b"application/octet-stream")
    head = AppendHead("default", "/v1/logs/default/records", query, [content_type, *headers])
    forwarder = Forwarder()
    response = answer_to(AppendCall(head, b"v", b"r"), LedElsewhere(), forwarder, LosesAnswers())
    assert response.status == status
    assert len(forwarder.sent) == sent
