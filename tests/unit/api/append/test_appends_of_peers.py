"""Appends from other nodes: what the leader reads of them, and those that it declines."""

from typing import Any

import pytest

from app.api.append.appends_of_peers import AppendsOfPeers
from app.api.append.call import AppendCall, AppendHead
from app.api.append.carried_head import carried_head, decode_head
from app.api.http.messages import Response
from app.errors import LogNotFound, RateLimited
from app.log.contract import Acks
from app.node.network.append_messages import DECLINED, CarriedAnswer, CarriedAppend


def head(query: bytes = b"", *headers: tuple[bytes, bytes]) -> AppendHead:
    given = ((b"content-type", b"application/octet-stream"), (b"authorization", b"Bearer t"), *headers)
    return AppendHead("default", "/v1/logs/default/records", query, given)


class Handler:
    """The parts of AppendGroups and AppendHandler that are used."""

    def __init__(self) -> None:
        self.calls: list[AppendCall] = []
        self.refusal: Exception | None = None
        self.entered: list[int] = []
        self.in_flight = self

    def check_log(self, _name: str) -> None:
        if isinstance(self.refusal, LogNotFound):
            raise self.refusal

    def enter(self, size_bytes: int) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.entered.append(size_bytes)

    @property
    def handler(self) -> "Handler":
        return self

    def begin(self, call: AppendCall, front: Any) -> None:
        self.calls.append(call)
        headers = [(b"content-length", b"2"), (b"commitlog-term", b"3"), (b"x-request-id", call.request_id)]
        front.answer(call, Response(200, headers, b"{}"))


def serve(handler: Handler, raw: bytes, appends: int = 1) -> list[CarriedAnswer]:
    answers: list[CarriedAnswer] = []
    given: Any = handler
    peers = AppendsOfPeers(given)
    for number in range(appends):
        peers.serve(CarriedAppend(number, 700, raw, b"request-1", b"value"), answers.append)
    return answers


def test_the_leader_reads_everything_except_the_token() -> None:
    handler = Handler()
    sent = head(b"acks=leader&timeout_ms=9&match_index=4", (b"idempotency-key", b"k"), (b"x-other", b"1"))
    assert b"Bearer" not in carried_head(sent)
    answers = serve(handler, carried_head(sent), appends=2)
    assert answers == [CarriedAnswer(k, 200, ((b"commitlog-term", b"3"),), b"{}") for k in (0, 1)]
    assert handler.entered == [5, 5]
    one, two = handler.calls
    assert one.head is two.head
    assert one.parameters is not None
    assert (one.parameters.acks, one.parameters.timeout_ms, one.parameters.match_index) == (
        Acks.LEADER,
        700,
        4,
    )
    assert one.head.fields == {
        b"content-type": b"application/octet-stream",
        b"idempotency-key": b"k",
        b"commitlog-no-forward": b"1",
    }
    assert (one.body, one.request_id, one.reserved_bytes) == (b"value", b"request-1", 5)


@pytest.mark.parametrize("refusal", [LogNotFound("default"), RateLimited("too many")])
def test_requests_that_http_refuses_before_the_body_are_declined(refusal: Exception) -> None:
    handler = Handler()
    handler.refusal = refusal
    assert serve(handler, carried_head(head())) == [CarriedAnswer(0, DECLINED)]
    assert handler.calls == []


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"\x93\xa1a\xc4\x01a", carried_head(head(b"acks=never"))])
def test_a_head_that_cannot_be_read_is_declined(raw: bytes) -> None:
    handler = Handler()
    assert serve(handler, raw) == [CarriedAnswer(0, DECLINED)]
    assert handler.calls == []
    assert handler.entered == []


def test_equal_heads_are_encoded_once() -> None:
    shared = head(b"timeout_ms=5")
    assert carried_head(shared) is carried_head(shared)
    assert decode_head(carried_head(shared)).query == b""
