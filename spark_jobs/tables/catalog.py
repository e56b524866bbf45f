"""Tables by name in a catalog of Spark: Unity Catalog, or the session's own.

The tables stay where they are, one folder per log; the catalog gets an external table of each. So the job,
the service and readers without Spark use the folder, and queries use the name:

    --catalog orders_cat.stream     orders_cat.stream.LOG_entries, ..., all logs in one schema
    --catalog orders_cat            orders_cat.LOG.entries, ..., one schema per log
"""

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pyspark.sql import SparkSession

from app.errors import ConfigError
from app.tables.delta_log import table_folders
from spark_jobs.session.locations import is_url
from spark_jobs.tables.conflicts import SPARK_ERRORS
from spark_jobs.tables.table import TABLES, is_table

_PART = re.compile(r"[^`./\s]+")
NAME_OF_FILE = "file:"


@dataclass(frozen=True)
class CatalogName:
    """A catalog, or a schema in one. schema: None for one schema per log."""

    catalog: str
    schema: str | None = None

    def schema_of(self, log: str) -> str:
        """Return the quoted name of the schema with the tables of a log."""
        return f"`{self.catalog}`.`{self.schema or _plain(log)}`"

    def name_of(self, log: str, table: str) -> str:
        """Return the quoted name of a log's table. A point of the log's name becomes an underscore: Unity
        Catalog has no points in names."""
        return f"{self.schema_of(log)}.`{table if self.schema is None else f'{_plain(log)}_{table}'}`"


def parse_catalog(text: str) -> CatalogName:
    """Read `catalog` or `catalog.schema`. Raises ConfigError."""
    parts = text.split(".")
    if len(parts) > 2 or not all(_PART.fullmatch(part) for part in parts):
        raise ConfigError(f"catalog must be CATALOG or CATALOG.SCHEMA, got {text!r}")
    return CatalogName(*parts)


class CatalogTables:
    """Registers the tables of a job's logs, each once. root: folder or URL of the tables."""

    def __init__(self, spark: SparkSession, name: CatalogName, root: str) -> None:
        self.spark = spark
        self.name = name
        self.root = root
        self._known: set[tuple[str, str]] = set()
        self._schemas: set[str] = set()
        self._complaint = ""

    def refresh(self, logs: Iterable[str]) -> None:
        """Register tables that exist and are not registered. An error of the catalog is reported, and the
        next call tries again. Raises ConfigError if a name belongs to another table."""
        try:
            for log in logs:
                for table in self._new(log):
                    self._register(log, table)
                    self._known.add((log, table))
        except SPARK_ERRORS as error:
            complaint = f"catalog {self.name.catalog}: {str(error).splitlines()[0]}; retrying\n"
            if complaint != self._complaint:
                self._complaint = complaint
                sys.stderr.write(complaint)

    def _new(self, log: str) -> Iterator[str]:
        if is_url(self.root):  # only Spark can list it
            known = (each.name for each in TABLES if (log, each.name) not in self._known)
            found: Iterable[str] = (name for name in known if is_table(self.spark, self._path(log, name)))
        else:
            found = table_folders(f"{self.root.rstrip('/')}/{log}")
        return (name for name in found if (log, name) not in self._known)

    def _path(self, log: str, table: str) -> str:
        return f"{self.root.rstrip('/')}/{log}/{table}"

    def _register(self, log: str, table: str) -> None:
        schema, name = self.name.schema_of(log), self.name.name_of(log, table)
        if schema not in self._schemas:
            self.spark.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            self._schemas.add(schema)
        path = self._path(log, table)
        location = path.replace("\\", "\\\\").replace("'", "\\'")
        self.spark.sql(f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION '{location}'")
        held = str(self.spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]["location"])
        if held.removeprefix(NAME_OF_FILE).rstrip("/") != path.removeprefix(NAME_OF_FILE):
            raise ConfigError(
                f"{name} is the table at {held}, so the catalog cannot show {path} under this name: drop "
                "that table, or choose another schema"
            )


def _plain(log: str) -> str:
    return log.replace(".", "_")
