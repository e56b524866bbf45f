"""Wrong arguments of the client are refused by name, before anything is sent: no node listens here."""

import asyncio
import math
import pickle
from collections.abc import Callable
from typing import Any, cast

import click
import numpy as np
import pyarrow as pa
import pytest

from app.cli.context import split_endpoints
from app.client import AsyncCommitlogClient, CommitlogClient, Consumer, Record, RecordProducer, in_batches
from app.client.data_frames import append_frame, read_frame
from app.client.operations import Operations
from app.client.tables import Tables
from spark_jobs.errors import OptionError
from spark_jobs.source.options import parse_endpoints
from tests.unit.cli.fake_service import Scripted, committed, fake_service
from tests.unit.cli.test_client import closed_url

URL = closed_url()
TABLE = pa.table({"value": ["v"]})
Call = Callable[[CommitlogClient], Any]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"log": None}, TypeError, "the name of a log must be text, got None"),
        ({"log": b"a"}, TypeError, "the name of a log must be text, got bytes"),
        ({"log": ""}, ValueError, "the name of a log must have 1 to 128 characters"),
        ({"token": b"secret"}, TypeError, "token must be text, got bytes"),
        ({"token": 5}, TypeError, "token must be text, got int"),
        ({"give_up_s": "5"}, TypeError, "give_up_s must be a number, got str"),
        ({"give_up_s": None}, TypeError, "give_up_s must be a number, got None"),
        ({"give_up_s": math.nan}, ValueError, "give_up_s must be a number from 0 on, got nan"),
        ({"give_up_s": -1}, ValueError, "give_up_s must be a number from 0 on, got -1"),
        ({"endpoints": None}, TypeError, "endpoints must be a list of base URLs, got None"),
        ({"endpoints": b"http://a"}, TypeError, "endpoints must be a list of base URLs, got b'http://a'"),
        ({"endpoints": [b"http://a"]}, TypeError, "an endpoint must be text, got bytes"),
        ({"endpoints": iter(())}, ValueError, "at least one endpoint is required"),
    ],
)
def test_a_client_is_not_made_of_wrong_arguments(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    for kind in (CommitlogClient, AsyncCommitlogClient):
        with pytest.raises(error, match=text):
            kind(**{"endpoints": URL, **options})


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda c: c.append(None), TypeError, "a list of records is required, got None"),
        (lambda c: c.append(5), TypeError, "a list of records is required, got int"),
        (
            lambda c: c.append([Record("v", headers=None)]),
            TypeError,
            "headers must be of the type tuple or list",
        ),
        (lambda c: c.append([Record("v", timestamp=True)]), TypeError, "timestamp .* whole number, got bool"),
        (lambda c: c.append([Record("v", timestamp=10**18)]), ValueError, "timestamp .* must be between"),
        (lambda c: c.append(["v"], timeout_ms="5"), TypeError, "timeout_ms must be a whole number, got str"),
        (
            lambda c: c.append(["v"], timeout_ms=None),
            TypeError,
            "timeout_ms must be a whole number, got None",
        ),
        (lambda c: c.append(["v"], idempotency_key=b"k"), TypeError, "an idempotency key must be text"),
        (lambda c: c.append_body("v", "text/plain"), TypeError, "body must be of the type bytes, got str"),
        (lambda c: c.append_body(b"v", None), TypeError, "content_type must be text, got None"),
        (
            lambda c: c.append_arrow({"value": ["v"]}),
            TypeError,
            "records must be .* got dict; append_frame takes",
        ),
        (
            lambda c: c.append_arrow(pa.table({"x": [1]})),
            ValueError,
            "records must have a column value.* got x",
        ),
        (lambda c: c.read(wait_ms="x"), TypeError, "wait_ms must be a whole number, got str"),
        (lambda c: c.read(endpoint="n1"), ValueError, "an endpoint is a base URL such as"),
        (lambda c: c.status(5), TypeError, "an endpoint must be text, got int"),
        (lambda c: c.cluster(""), ValueError, "an endpoint is a base URL such as"),
        (lambda c: c.read_arrow(None), TypeError, "from_index must be a whole number, got None"),
        (lambda c: next(c.follow(None)), TypeError, "from_index must be a whole number, got None"),
        (lambda c: next(c.arrow_pages(0, most=0)), ValueError, "most must be at least 1, got 0"),
        (lambda c: next(c.arrow_pages(0, limit="x")), TypeError, "limit must be a whole number, got str"),
        (
            lambda c: c.put_schema(b"a INT"),
            TypeError,
            "definition must be of the type str or Mapping, got bytes",
        ),
        (lambda c: Consumer(URL, "name"), TypeError, "client must be of the type CommitlogClient, got str"),
        (lambda c: Consumer(c, None), TypeError, "the name of a cursor must be text, got None"),
        (lambda c: c.append(["x"], log="a"), TypeError, r"use CommitlogClient\(\.\.\., log='a'\)"),
        (lambda c: c.read(log="a"), TypeError, "a call has no option log"),
        (pickle.dumps, TypeError, "create one in each process"),
        (lambda c: RecordProducer(None), TypeError, "client must be of the type CommitlogClient, got None"),
        (lambda c: RecordProducer(c, producer_id=5), TypeError, "producer_id must be text, got int"),
        (lambda c: RecordProducer(c, linger_ms=None), TypeError, "linger_ms must be a number, got None"),
        (lambda c: RecordProducer(c, max_in_flight=2.5), TypeError, "max_in_flight must be a whole number"),
        (lambda c: RecordProducer(c, max_in_flight=6), ValueError, "max_in_flight must be between 1 and 5"),
        (
            lambda c: RecordProducer(c, timeout_ms="x"),
            TypeError,
            "timeout_ms must be a whole number, got str",
        ),
        (lambda c: append_frame(None, TABLE), TypeError, "client must be of the type CommitlogClient"),
        (
            lambda c: append_frame(c, TABLE, max_records=0),
            ValueError,
            "max_records must be at least 1, got 0",
        ),
        (lambda c: read_frame(c, "x"), TypeError, "from_index must be a whole number, got str"),
        (lambda c: Operations(None), TypeError, "client must be of the type CommitlogClient, got None"),
        (lambda c: Operations(c).move_cursor("n", 1.5), TypeError, "index must be a whole number, got float"),
        (lambda c: Operations(c).trim(None), TypeError, "until_index must be a whole number, got None"),
        (lambda c: Operations(c).remove_member(None), TypeError, "node_id must be text, got None"),
        (
            lambda c: Operations(c).change_log("a", None),
            TypeError,
            "changes must be of the type Mapping, got None",
        ),
        (lambda c: Operations(c).set_fence(b"t"), TypeError, "token must be text, got bytes"),
        (lambda c: Tables(c).wait("x"), TypeError, "index must be a whole number, got str"),
        (lambda c: list(in_batches("ab")), TypeError, "a list of records is required, got one str"),
        (
            lambda c: list(in_batches(cast(Any, ["ab"]))),
            TypeError,
            "a record must be of the type Record",
        ),
        (lambda c: list(in_batches([], 0)), ValueError, "max_records must be at least 1, got 0"),
    ],
)
def test_a_call_with_wrong_arguments_is_not_made(call: Call, error: type[Exception], text: str) -> None:
    with CommitlogClient(URL, give_up_s=0) as client, pytest.raises(error, match=text):
        call(client)


def test_the_asyncio_client_refuses_them_too() -> None:
    async def refuse() -> None:
        async with AsyncCommitlogClient(URL, give_up_s=0) as client:
            with pytest.raises(TypeError, match="a list of records is required"):
                await client.append(5)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="the name of a cursor must be text"):
                await client.consumer(None)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="linger_ms must be a number"):
                client.producer(linger_ms="x")

    with pytest.raises(ValueError, match="max_calls must be at least 1"):
        AsyncCommitlogClient(URL, max_calls=0)
    asyncio.run(refuse())


def test_a_refused_record_does_not_end_a_producer() -> None:
    """The client refuses the one record, before the service would refuse the whole append."""
    refused = [
        lambda p: p.send(Record("v", timestamp=True)),
        lambda p: p.send(Record("v", timestamp=10**18)),
        lambda p: p.send(Record("v", headers=None)),
        lambda p: p.send_arrow(pa.table({"x": [1]})),
        lambda p: p.send_many("text"),
        lambda p: p.flush("x"),
    ]
    with (
        fake_service(lambda asked: Scripted(200, committed(0, 1))) as node,
        CommitlogClient(node.url) as client,
    ):
        with RecordProducer(client) as producer:
            for call in refused:
                with pytest.raises((TypeError, ValueError)):
                    call(producer)
            delivery = producer.send("v")
            with pytest.raises(TypeError, match="timeout_s must be a number, got str"):
                delivery.result("x")  # type: ignore[arg-type]
            assert delivery.result(30) == 0
        assert len(node.appends()) == 1


def test_whole_numbers_of_numpy_are_accepted() -> None:
    record = {"index": 4, "term": 1, "value": "v"}
    page = {"records": [record], "next_index": 5, "has_more": False}
    with fake_service(lambda asked: Scripted(200, page)) as node, CommitlogClient(node.url) as client:
        assert next(client.follow(np.int64(4))) == record  # type: ignore[arg-type]
    assert node.asked[0].query["from_index"] == "4"


@pytest.mark.parametrize(
    "endpoint", ["http://me:s3@n1:8101", "https://me:s3@[::1]", "http://me:s3@", "s://a/me:s3@b"]
)
def test_an_endpoint_with_a_password_is_refused_and_not_shown(endpoint: str) -> None:
    """It would not be sent, and every error would contain it."""
    refusals: list[tuple[type[Exception], Callable[[], object]]] = [
        (ValueError, lambda: CommitlogClient(endpoint)),
        (click.BadParameter, lambda: split_endpoints([endpoint], learned=False)),
        (OptionError, lambda: parse_endpoints(endpoint)),
    ]
    for error, given in refusals:
        with pytest.raises(error, match="URL such as") as refused:
            given()
        assert "s3" not in str(refused.value)
