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
            assert answer.json()["errors"][0]["detail"].startswith("must be less than or equal to 9223372")
            answer = await node.client.get("/v1/logs/default/records", params={"limit": "9" * 5_000})
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
            answer = await node.client.get("/v1/logs/default/records", params={"limit": "100001"})
            assert answer.json()["errors"][0]["detail"].endswith("equal to 100000, got '100001'")
            for place in ("records", "epochs", "schemas"):
                for text in ("+1", "1.0", "1_0", "%201", "x"):
                    answer = await node.client.get(f"/v1/logs/default/{place}/{text}")
                    assert answer.status_code == 422, (place, text)
                    assert "must be a whole number" in answer.json()["errors"][0]["detail"]

    asyncio.run(run())
