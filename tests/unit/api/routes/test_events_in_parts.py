"""A page of many events of a journal is read in parts: each event takes some 30 us of the event loop."""

import asyncio
from pathlib import Path

import pytest

from storage.log.journal import Event, Journal
from tests.support.in_process import node_in_process


@pytest.mark.parametrize("trims", [False, True])
def test_a_large_page_of_events_is_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trims: bool
) -> None:
    limits: list[int] = []
    read = Journal.read

    def reading(journal: Journal, from_seq: int, limit: int) -> tuple[list[Event], int, bool]:
        limits.append(limit)
        result = read(journal, from_seq, limit)
        if trims and len(limits) == 2:
            ticket = journal._log.start_trim(100)  # what follows this part
            assert ticket is not None
            ticket.run()
        return result

    async def scenario() -> None:
        async with node_in_process(tmp_path) as node:
            journal = node.broker.lookup.find("default").journal
            assert journal is not None
            for number in range(100):
                journal.append("started", 1, {"number": number}, 1_000)
            ticket = journal.start_sync()
            assert ticket is not None
            ticket.run()
            journal.finish_sync(ticket)
            monkeypatch.setattr("app.api.routes.cluster._EVENTS_AT_ONCE", 20)
            monkeypatch.setattr(Journal, "read", reading)
            page = (await node.client.get("/v1/logs/default/events", params={"limit": 90})).json()
            seqs = [event["seq"] for event in page["events"]]
            count = 40 if trims else 90
            assert seqs == list(range(count))
            assert (page["next_seq"], page["has_more"]) == (count, True)
            assert limits == [20, 20] if trims else [20, 20, 20, 20, 10]
            answer = await node.client.get("/v1/logs/default/events", params={"from_seq": count})
            assert answer.status_code == (410 if trims else 200)

    asyncio.run(scenario())
