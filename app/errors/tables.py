"""Refusals of queries about a log's Delta tables."""

from typing import Any

from app.errors.base import CommitlogError


def no_table(table: str, log: str) -> str:
    """Return why a log has no table, and which command makes it."""
    return (
        f"log {log!r} has no table {table!r}; the Spark job (`commitlog up` or `commitlog materialize`) "
        "writes the tables, into the folder that [tables] path of the nodes' configuration names"
    )


class TableNotFound(CommitlogError):
    """The log has no Delta table with this name, or the location of its tables is unknown."""

    code, title, http_status = "table-not-found", "Table not found", 404

    def __init__(self, table: str, log: str) -> None:
        super().__init__(no_table(table, log))
        self.table = table

    def fields(self) -> dict[str, Any]:
        return {"table": self.table}


class NoSuchCut(CommitlogError):
    """The tables have no version for this point of the log: not reached yet, or no longer kept."""

    code, title, http_status = "no-such-cut", "No table version for this point", 404

    def __init__(self, detail: str, materialized_index: int | None) -> None:
        super().__init__(detail)
        self.materialized_index = materialized_index

    def fields(self) -> dict[str, Any]:
        return {"materialized_index": self.materialized_index}


class NotYetMaterialized(CommitlogError):
    """The record is not in the table yet. The materializer may be slow or not running."""

    code, title, http_status, retryable = (
        "not-yet-materialized",
        "The record is not in the table yet",
        504,
        True,
    )

    def __init__(self, index: int, materialized_index: int) -> None:
        super().__init__(f"the table holds the log up to index {materialized_index}, not {index}")
        self.materialized_index = materialized_index

    def fields(self) -> dict[str, Any]:
        return {"materialized_index": self.materialized_index}
