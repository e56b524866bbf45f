"""A log as Arrow tables, page by page."""

import threading
from typing import Any

from app.client import CommitlogClient
from app.client.data_frames import read_frame
from tests.support.cluster import Cluster

RECORDS = 50


def test_a_log_is_read_page_by_page_and_the_next_page_is_requested_meanwhile(
    cluster: Cluster, own_logs: list[str]
) -> None:
    own_logs.append("pages")
    cluster.call("POST", "n1", "/v1/logs", json={"name": "pages"})
    requested = threading.Semaphore(0)

    class Client(CommitlogClient):
        def read_arrow(self, *call: Any, **query: Any) -> Any:
            requested.release()
            return super().read_arrow(*call, **query)

    with Client(f"http://127.0.0.1:{cluster.rest_ports['n1']}", log="pages") as client:
        first = client.append([str(number) for number in range(RECORDS)]).first_index
        indexes = list(range(first, first + RECORDS))
        pages = client.arrow_pages(first, limit=20)
        table, next_index, has_more = next(pages)
        assert (table["index"].to_pylist(), next_index, has_more) == (indexes[:20], first + 20, True)
        for _ in range(2):  # the page that was returned, and the one after it
            assert requested.acquire(timeout=10)
        found = [(table.num_rows, has_more) for table, _, has_more in pages]
        assert found == [(20, True), (10, False)]
        for most, sizes in ((25, [20, 5]), (20, [20]), (RECORDS, [20, 20, 10])):
            limited = client.arrow_pages(first, most=most, limit=20)
            assert [table.num_rows for table, _, _ in limited] == sizes
        assert [table.num_rows for table, _, _ in client.arrow_pages(first + RECORDS)] == [0]
        assert read_frame(client, first, limit=7)["index"].to_pylist() == indexes
