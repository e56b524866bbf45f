"""Reads of more than one page: filters with a limit, the last records that match, a whole log."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from app.client import CommitlogClient, Page

FIRST_WINDOW = 1_000  # indexes read for the last records that match a filter; then four times as many
LONGEST_WINDOW = 100_000
LARGEST_PAGE = 100_000
STARTS = ("from", "from_timestamp", "last", "cursor", "from_index")


def pages(client: "CommitlogClient", limit: int | None, **query: Any) -> Iterator["Page"]:
    """Yield pages from the start in `query` on, until `limit` records or the end that the first page saw.

    limit: None for all records. A page that a filter leaves empty is not the end. Raises OtherLog when the
    log was deleted and created again between two pages.
    """
    query = {name: value for name, value in query.items() if value is not None}
    local = query.get("consistency") == "local"
    left = limit
    while True:
        page = client.read(limit=LARGEST_PAGE if left is None else min(left, LARGEST_PAGE), **query)
        yield page
        if left is not None:
            left -= len(page.records)
        if not page.has_more or left == 0:
            return
        end = page.document["end_index" if local else "committed_index"] + 1
        query = {name: value for name, value in query.items() if name not in STARTS}
        query = {"until_index": end, **query, "from_index": page.next_index, "wait_ms": 0}
        query["log_id"] = page.log_id or query.get("log_id")


def tables(
    client: "CommitlogClient", limit: int | None, **query: Any
) -> Iterator[tuple["pa.Table", int, bool]]:
    """Yield the records that `pages` yields as Arrow tables, at least one.

    Each with the index after it, and true if committed records follow.
    """
    query = {name: value for name, value in query.items() if value is not None}
    first = client.read(limit=1, **query)
    at = first.records[0]["index"] if first.records else first.next_index
    end = end_of(first.document, query.get("consistency"))
    query = {name: value for name, value in query.items() if name not in (*STARTS, "wait_ms")}
    yield from client.arrow_pages(at, most=limit, **{"until_index": end, "log_id": first.log_id, **query})


def end_of(document: Mapping[str, Any], consistency: str | None) -> int:
    """Return the index after the last record that a read with this consistency sees. document: a page or the
    tail of the log."""
    return int(document["end_index" if consistency == "local" else "committed_index"]) + 1


def last_matching(client: "CommitlogClient", count: int, **query: Any) -> int:
    """Return the index of the first of the last `count` records that match the filters of `query`, before its
    end.

    The log is searched from its end in growing windows. Without enough records: the beginning of the log.
    """
    tail = client.tail(consistency=query.get("consistency") or "linearizable")
    end = end_of(tail, query.get("consistency"))
    query.pop("wait_ms", None)
    if query.get("until_index") is not None:
        end = min(end, query["until_index"])
    if (until_ms := query.pop("until_timestamp", None)) is not None:
        seen: dict[str, Any] = {name: query.get(name) for name in ("consistency", "include")}
        later = client.read(from_timestamp=until_ms, limit=1, **seen).records
        end = min(end, later[0]["index"]) if later else end
    begin = max(0, tail["begin_index"])
    found: list[int] = []
    window, until = FIRST_WINDOW, end
    while until > begin and len(found) < count:
        first = max(begin, until - window)
        within = {**query, "from_index": first, "until_index": until}
        indexes = [record["index"] for page in pages(client, None, **within) for record in page.records]
        found = indexes + found
        until, window = first, min(4 * window, LONGEST_WINDOW)
    return found[-count] if len(found) >= count else begin
