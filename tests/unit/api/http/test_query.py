"""Parameters of queries and paths: numbers have one spelling, and a refusal shows the value received."""

import asyncio
from pathlib import Path

from tests.support.in_process import node_in_process


def test_a_number_is_digits_alone(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            for text in ("+1", "1.0", "1_0", " 1", "0x1", "", "\u0661"):
                answer = await node.client.get("/v1/logs/default/records", params={"from_index": text})
                detail = f"must be a whole number, got {text!r}"
                assert answer.json()["errors"] == [{"pointer": "/query/from_index", "detail": detail}]
            answer = await node.client.get("/v1/logs/default/records", params={"from_index": "9" * 30})
            assert answer.json()["errors"][0]["detail"].startswith("must be at most 9223372")
            answer = await node.client.get("/v1/logs/default/records", params={"limit": "9" * 5_000})
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
            answer = await node.client.get("/v1/logs/default/records", params={"limit": "100001"})
            assert answer.json()["errors"][0]["detail"] == "must be at most 100000, got '100001'"
            answer = await node.client.get("/v1/logs/default/records", params={"limit": "0"})
            assert answer.json()["errors"][0]["detail"] == "must be at least 1, got '0'"
            for place in ("records", "epochs", "schemas"):
                for text in ("+1", "1.0", "1_0", "%201", "x"):
                    answer = await node.client.get(f"/v1/logs/default/{place}/{text}")
                    assert answer.status_code == 422, (place, text)
                    assert "must be a whole number" in answer.json()["errors"][0]["detail"]

    asyncio.run(run())


def test_a_parameter_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """The bytes were replaced by one and the same character: of two producers the second one was answered as
    a retry of the first, and its record was not stored."""

    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            path = "/v1/logs/default/records"
            for producer in ("caf%E9", "caf%E8", "caf%C3%A9"):
                query = f"producer_id={producer}&producer_epoch=0&producer_sequence=0"
                answer = await node.client.post(f"{path}?{query}", json={"value": producer})
                if producer == "caf%C3%A9":
                    assert (answer.status_code, answer.json()["replayed"]) == (200, False)
                    continue
                assert answer.status_code == 422
                detail = f"must be UTF-8, got 'producer_id={producer}'"
                assert answer.json()["errors"] == [{"pointer": "/query/producer_id", "detail": detail}]
            answer = await node.client.get(f"{path}?key=%FF&wait_ms=1&from_index=0")
            assert answer.json()["errors"] == [
                {"pointer": "/query/key", "detail": "must be UTF-8, got 'key=%FF'"}
            ]

    asyncio.run(run())
