"""Answers whose encoding takes long do not occupy the event loop: replication and other clients use it."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from app.api.routes import block_digests
from tests.support.in_process import node_in_process

DIGESTS = "/v1/logs/default/digests?block=1"


def test_the_openapi_document_is_made_once(tmp_path: Path) -> None:
    """Clients without a token may request it."""

    async def scenario() -> None:
        async with node_in_process(tmp_path) as node:
            generate, made = node.framework.openapi, 0

            def counted() -> dict[str, Any]:
                nonlocal made
                made += 1
                return generate()

            node.framework.openapi = counted  # type: ignore[method-assign]
            answers = [await node.client.get("/v1/openapi.json") for _ in range(3)]
            assert made == 1
            assert {answer.status_code for answer in answers} == {200}
            assert len({answer.content for answer in answers}) == 1
            assert answers[0].json()["openapi"]
            refused = await node.client.post("/v1/openapi.json")
            assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")

    asyncio.run(scenario())


def test_a_page_of_many_digests_is_encoded_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    encode = block_digests.json_answer

    def encoding(*given: Any, **named: Any) -> Any:
        threads.append(threading.current_thread())
        return encode(*given, **named)

    async def scenario() -> None:
        async with node_in_process(tmp_path) as node:
            records = [{"value": str(number)} for number in range(20)]
            await node.client.post("/v1/logs/default/records", json={"records": records})
            monkeypatch.setattr(block_digests, "json_answer", encoding)
            few = await node.client.get(DIGESTS)
            monkeypatch.setattr(block_digests, "_BLOCKS_AT_ONCE", 19)
            many = await node.client.get(DIGESTS)
            assert few.json() == many.json()
            assert len(few.json()["blocks"]) == 20
            assert few.headers["commitlog-term"] == many.headers["commitlog-term"]

    asyncio.run(scenario())
    main = threading.main_thread()
    assert [thread is main for thread in threads] == [True, False]
