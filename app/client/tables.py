"""Queries about the Delta tables of a log: are records in them, and which versions belong to a point of
the log?"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import quote

from app.arguments import check_instance, check_number, check_text, check_whole
from app.client.client import CommitlogClient, document_of
from app.client.errors import NoAnswer, Unavailable
from app.tables.digests import BLOCK, BlockSum
from app.tables.names import ENTRIES

LONGEST_WAIT_MS = 60_000  # of one call
PAUSE_S = 0.2  # before the nodes are asked again


@dataclass(frozen=True)
class MaterializedTable:
    """State of one table. The index and the lag are None for tables that hold no records.

    materialized_index: every committed record up to it is a row or a control record. lag_ms: age of the
    oldest record that is not in the table yet, 0 for none. committed_ms: time of the newest commit; None if
    it is not known. catalog_name: name in a catalog of Spark, None without one.
    """

    name: str
    path: str
    version: int
    materialized_index: int | None
    lag_records: int | None
    lag_ms: int | None
    committed_ms: int | None = None
    catalog_name: str | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "MaterializedTable":
        """Return the table of an answer. Newer nodes may send fields that this client does not know."""
        return cls(**_known(cls, document))


@dataclass(frozen=True)
class TablesJob:
    """Last report of the Spark job that writes the tables of the log.

    state: running, done, stopped, failed; a job that was killed stays as it was. updated_ms: time of the
    report. error: why the job has failed, in one sentence, and failed_ms: since when; None if it has not, or
    if that is not known.
    """

    state: str
    updated_ms: int
    error: str | None = None
    failed_ms: int | None = None


@dataclass(frozen=True)
class Listing:
    """The tables by name, and the job that writes them, None if the node knows none."""

    tables: Sequence[MaterializedTable]
    job: TablesJob | None


@dataclass(frozen=True)
class Cut:
    """The versions that belong to the point up to `index`. exact: that of `entries` holds nothing after
    it."""

    index: int
    versions: Mapping[str, int]
    exact: bool


@dataclass(frozen=True)
class DigestPage:
    """The sums of some blocks, by their first index; the next page may continue the last block."""

    sums: Mapping[int, BlockSum]
    next_index: int


class Tables:
    """Calls of one client. All raise ClientError."""

    def __init__(self, client: CommitlogClient) -> None:
        check_instance("client", client, CommitlogClient)
        self._connection = client.connection
        self._log = f"/v1/logs/{quote(client.log, safe='')}"

    def all(self) -> list[MaterializedTable]:
        """Return the tables by name."""
        return list(self.listing().tables)

    def listing(self) -> Listing:
        """Return the tables by name with the last report of their job."""
        found = self._get("/tables")
        job = found.get("job")  # nodes of earlier releases do not send it
        return Listing(
            [MaterializedTable.of(table) for table in found["tables"]],
            None if job is None else TablesJob(**_known(TablesJob, job)),
        )

    def find(self, name: str) -> MaterializedTable:
        """Return one table. Raises NotFound."""
        check_text("name", name)
        return MaterializedTable.of(self._get(f"/tables/{quote(name, safe='')}"))

    def wait(self, index: int, *, table: str = ENTRIES, timeout_ms: int = 5_000) -> MaterializedTable:
        """Return the table once it holds the record. Raises Unavailable (not-yet-materialized) after the
        time."""
        check_whole("index", index, 0)
        check_text("table", table)
        check_number("timeout_ms", timeout_ms)
        path = f"{self._log}/tables/{quote(table, safe='')}:wait"
        deadline = time.monotonic() + timeout_ms / 1_000
        while True:
            failed: list[NoAnswer | Unavailable] = []
            for endpoint in self._connection.endpoints:
                left_ms = min(max(0, int((deadline - time.monotonic()) * 1_000)), LONGEST_WAIT_MS)
                try:
                    self._connection.check_cluster(endpoint)
                    answer = self._connection.once(
                        "GET",
                        endpoint,
                        path,
                        query={"index": index, "timeout_ms": left_ms},
                        wait_s=left_ms / 1_000,
                    )
                except (NoAnswer, Unavailable) as error:
                    failed.append(error)
                    continue
                return MaterializedTable.of(document_of(answer))
            left_s = deadline - time.monotonic()
            unavailable = [error for error in failed if isinstance(error, Unavailable)]
            if not unavailable or left_s <= 0:
                raise (unavailable or failed)[-1]
            time.sleep(min(PAUSE_S, left_s))

    def at(self, **point: int) -> Cut:
        """point: one of index, timestamp (ms) and epoch. Raises NotFound (no-such-cut)."""
        found = self._get("/tables:at", **point)
        return Cut(found["index"], found["tables"], found["exact"])

    def digests(self, from_index: int, until_index: int, block: int = BLOCK) -> Iterator[DigestPage]:
        """Yield the digests of the data records of [from_index, until_index), page by page.

        Raises NotFound when an index was trimmed.
        """
        check_whole("from_index", from_index, 0)
        check_whole("until_index", until_index, 0)
        while from_index < until_index:
            page = self._get("/digests", from_index=from_index, until_index=until_index, block=block)
            sums = {
                block["first_index"]: BlockSum(block["count"], int(block["digest"], 16))
                for block in page["blocks"]
            }
            from_index = page["next_index"]
            yield DigestPage(sums, from_index)
            if not page["has_more"]:
                return

    def _get(self, route: str, **query: int) -> dict[str, Any]:
        return document_of(self._connection.call("GET", f"{self._log}{route}", query=query))


def _known(kind: type, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an answer that this client knows."""
    known = {each.name for each in fields(kind)}
    return {name: value for name, value in document.items() if name in known}
