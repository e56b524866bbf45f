"""Answers whose encoding takes long do not occupy the event loop: replication and other clients use it."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from app.api.http import dependencies
from tests.support.in_process import node_in_process

LOG = "/v1/logs/default"


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


@pytest.mark.parametrize(
    ("path", "rows"),
    [
        ("digests?block=1", "blocks"),
        ("events?limit=1", "events"),
        ("epochs", "epochs"),
        ("cursors", "cursors"),
    ],
)
def test_a_list_of_many_rows_is_encoded_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, rows: str
) -> None:
    threads: list[threading.Thread] = []
    encode = dependencies.json_answer

    def encoding(*given: Any, **named: Any) -> Any:
        threads.append(threading.current_thread())
        return encode(*given, **named)

    async def scenario() -> None:
        async with node_in_process(tmp_path) as node:
            await node.client.post(f"{LOG}/records", json={"records": [{"value": "a"}]})
            await node.client.put(f"{LOG}/cursors/etl", json={"index": 1})
            monkeypatch.setattr(dependencies, "json_answer", encoding)
            few = await node.client.get(f"{LOG}/{path}")
            monkeypatch.setattr(dependencies, "ROWS_AT_ONCE", len(few.json()[rows]) - 1)
            many = await node.client.get(f"{LOG}/{path}")
            assert few.json() == many.json()
            assert few.json()[rows]
            assert few.headers["commitlog-term"] == many.headers["commitlog-term"]

    asyncio.run(scenario())
    main = threading.main_thread()
    assert [thread is main for thread in threads] == [True, False]
