"""Tables by name in a catalog of Spark: Unity Catalog, or the session's own.

The tables stay where they are, one folder per log; the catalog gets an external table of each. So the job,
the service and readers without Spark use the folder, and queries use the name:

    --catalog orders_cat.stream     orders_cat.stream.LOG_entries, ..., all logs in one schema
    --catalog orders_cat            orders_cat.LOG.entries, ..., one schema per log

The names are recorded in TABLES/LOG/_catalog_names.json, which the nodes read: `commitlog tables` shows them.
"""

import json
import re
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from app.errors import ConfigError
from app.tables.delta_log import table_folders
from app.tables.names import CATALOG_NAMES_FILE
from spark_jobs.job_lines import warn
from spark_jobs.session.locations import is_url
from spark_jobs.session.spark_session import is_remote
from spark_jobs.tables.conflicts import SPARK_ERRORS
from spark_jobs.tables.table import TABLES, TYPED_TABLES, is_table

_PART = re.compile(r"[^`./\s]+")
_PLAIN_PART = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # needs no quotes in SQL
NAME_OF_FILE = "file:"


@dataclass(frozen=True)
class CatalogName:
    """A catalog, or a schema in one. schema: None for one schema per log."""

    catalog: str
    schema: str | None = None

    def schema_of(self, log: str) -> str:
        """Return the quoted name of the schema with the tables of a log."""
        return _quoted(self._parts(log, "")[:2])

    def name_of(self, log: str, table: str) -> str:
        """Return the quoted name of a log's table. A point of the log's name becomes an underscore: Unity
        Catalog has no points in names."""
        return _quoted(self._parts(log, table))

    def shown_name_of(self, log: str, table: str) -> str:
        """Return the name of a log's table as a person writes it: quoted only where SQL needs that."""
        parts = self._parts(log, table)
        return ".".join(part if _PLAIN_PART.fullmatch(part) else _quoted([part]) for part in parts)

    def _parts(self, log: str, table: str) -> list[str]:
        name = log.replace(".", "_")
        if self.schema is None:
            return [self.catalog, name, table]
        return [self.catalog, self.schema, f"{name}_{table}"]


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
        self._driver = uuid.uuid4().hex  # others may write the same file

    def refresh(self, logs: Iterable[str]) -> None:
        """Register tables that exist and are not registered. An error of the catalog, or of the file of the
        names, is reported, and the next call tries again. Raises ConfigError if a name belongs to another
        table."""
        try:
            for log in logs:
                new = list(self._new(log))
                for table in new:
                    self._register(log, table)
                if new:
                    self._record(log, {table for known, table in self._known if known == log}.union(new))
                    self._known.update((log, table) for table in new)
        except (*SPARK_ERRORS, OSError) as error:
            complaint = f"catalog {self.name.catalog}: {str(error).splitlines()[0]}; retrying"
            if complaint != self._complaint:
                self._complaint = complaint
                warn(complaint)

    def _new(self, log: str) -> Iterator[str]:
        if is_url(self.root):  # only Spark can list it
            names = (each.name for each in (*TABLES, *TYPED_TABLES))
            known = (name for name in names if (log, name) not in self._known)
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

    def _record(self, log: str, tables: Iterable[str]) -> None:
        """Write the names of a log's tables for the nodes; over Spark Connect only into a folder."""
        names = {table: self.name.shown_name_of(log, table) for table in sorted(tables)}
        path, text = self._path(log, CATALOG_NAMES_FILE), json.dumps(names) + "\n"
        if not is_url(path):
            temporary = Path(f"{path}.{self._driver}.tmp")
            try:
                temporary.write_text(text, "utf-8")
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
        elif not is_remote(self.spark):
            jvm: Any = self.spark._jvm
            place = jvm.org.apache.hadoop.fs.Path(path)
            files = place.getFileSystem(self.spark.sparkContext._jsc.hadoopConfiguration())
            stream = files.create(place, True)
            stream.write(text.encode())
            stream.close()


def _quoted(parts: Iterable[str]) -> str:
    return ".".join(f"`{part}`" for part in parts)
