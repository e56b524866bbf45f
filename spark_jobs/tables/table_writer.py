"""Writer of one table of a log: creation, and appends that are made once (claims.append_once).

The driver makes commits itself where they are as exclusive as Spark's: in a local folder whose commits are
hard links (local/commits.py). They add a few rows, or files that tasks of Spark have written. Spark makes
all other commits.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField

from app.tables.delta_log import DeltaLogError
from app.tables.names import application_of
from spark_jobs.session.jars import LOG_STORE_CLASS
from spark_jobs.session.locations import is_url
from spark_jobs.session.spark_session import is_remote
from spark_jobs.tables.checkpoints import CHECKPOINTS
from spark_jobs.tables.claims import append_once, claim_alone, newest_claim, precompute_claims
from spark_jobs.tables.local.commits import LocalTable, NeedsSpark
from spark_jobs.tables.local.data_files import WrittenFile
from spark_jobs.tables.table import Table, create_table, settings_of_table

LOG_STORE = "spark.delta.logStore.file.impl"
FILE_SYSTEM = "fs.defaultFS"


class TableWriter:
    """path: folder or URL of the table. is_small: it is replaced as a whole (`replace`). follows: more
    appends follow soon, so a claim that Spark checks is prepared between two of them.

    checked_last: the last append was made here, not by Spark, so its `is_next` held until its commit.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        table: Table,
        *,
        is_small: bool = False,
        follows: bool = False,
    ) -> None:
        self.spark = spark
        self.path = path
        self.table = table
        self.checked_last = False
        self._follows = follows
        self._local = local_table(spark, path, keeps_files=is_small) if links_commits(spark, path) else None

    @property
    def is_local(self) -> bool:
        """True if this process makes the commits, unless the table needs Spark."""
        return self._local is not None

    def create(self, properties: Mapping[str, str] | None = None) -> bool:
        """Create the table unless it exists; return whether it was created now. As `create_table`."""
        if self._local is not None:
            try:
                return self._local.create(
                    self.table.schema,
                    cluster_by=self.table.cluster_by,
                    comments=self.table.columns,
                    properties=settings_of_table(self.table, properties),
                )
            except NeedsSpark:
                pass
        return create_table(self.spark, self.path, self.table, properties)

    def add_columns(self, columns: Sequence[StructField]) -> bool:
        """Add columns unless the table has one of them; return False if only Spark can do so. columns: as of
        `LocalTable.add_columns`."""
        if self._local is not None:
            with contextlib.suppress(NeedsSpark, DeltaLogError):
                self._local.add_columns(columns)
                return True
        return False

    def append(
        self,
        rows: pa.Table,
        *,
        application: str,
        claim: int,
        position: str,
        note: Mapping[str, Any],
        is_next: Callable[[], bool] | None = None,
    ) -> int | None:
        """Append rows, one or more, if the table has not given `claim`; return the largest value of the
        column `position`, None when the append was refused: then read the table again. is_next: as
        `LocalTable.append`; of a table in a folder that needs Spark, which cannot check it at its commit
        (`checked_last`), it is called before."""
        self.checked_last = False
        if self._local is not None:
            try:
                done = self._local.append(
                    rows,
                    statistics=self.table.statistics,
                    application=application,
                    claim=claim,
                    note=note,
                    is_next=is_next,
                )
                self.checked_last = True
                return int(pc.max(rows[position]).as_py()) if done else None
            except (NeedsSpark, DeltaLogError):
                if is_next is not None and not is_next():
                    return None
        written = append_once(
            self._frame(rows), self.path, application=application, claim=claim, position=position, note=note
        )
        if written is not None and self._follows and self._local is None:
            precompute_claims(self.spark, self.path, application=application, claimed=claim)
        return None if written is None else written[1]

    def append_files(
        self,
        write: Callable[[Path], Sequence[WrittenFile]],
        *,
        application: str,
        claim: int,
        note: Mapping[str, Any],
        is_next: Callable[[], bool] | None = None,
    ) -> Sequence[WrittenFile] | None:
        """Append the files that `write` makes in the folder of the table, if it has not given `claim`; return
        them, None when the append was refused: then read the table again.

        write: not called for a claim that the table has. is_next: as `LocalTable.append`. Raises NeedsSpark:
        only Spark can write this table.
        """
        self.checked_last = False
        if self._local is None:
            raise NeedsSpark(f"{self.path} is in no local folder whose commits are exclusive")
        write_here = partial(write, self._local.path)
        try:
            files = self._local.append_files(
                write_here, application=application, claim=claim, note=note, is_next=is_next
            )
        except DeltaLogError as error:
            raise NeedsSpark(f"{self.path}: {error}") from error
        self.checked_last = True
        return files

    def claim(self, application: str, claim: int) -> None:
        """Make a commit with this claim alone, unless the table has it, or a higher one."""
        if self._local is not None:
            try:
                self._local.claim(application, claim)
                return
            except (NeedsSpark, DeltaLogError):
                pass
        claim_alone(self.spark, self.path, self.table, application=application, claim=claim)

    def replace(self, rows: pa.Table, *, application: str, claim: int, position: str, note: Any) -> bool:
        """Let `rows`, one or more, be all rows of a small table, if it has not given `claim`; return whether
        it did."""
        if self._local is not None:
            try:
                return self._local.replace(
                    lambda: rows, statistics=self.table.statistics, claim=(application, claim), note=note
                )
            except (NeedsSpark, DeltaLogError):
                pass
        written = append_once(
            self._frame(rows),
            self.path,
            application=application,
            claim=claim,
            position=position,
            note=note,
            replaces=True,
        )
        return written is not None

    def update(self, rows_of: Callable[[], pa.Table], position: str) -> None:
        """Let the result of `rows_of`, which may read the table, be all rows of a small table.

        rows_of: called again when another writer was first. position: a column of integers.
        """
        if self._local is not None:
            try:
                self._local.replace(rows_of, statistics=self.table.statistics, claim=None, note={})
                return
            except (NeedsSpark, DeltaLogError):
                pass
        application = application_of(self.table.name)
        while True:
            before = newest_claim(self.spark, self.path, application)
            rows = self._frame(rows_of())
            if before is None:  # no reader of claims: the last driver to write keeps its rows
                rows.write.format("delta").mode("overwrite").save(self.path)
                return
            if append_once(
                rows,
                self.path,
                application=application,
                claim=before + 1,
                position=position,
                note={},
                replaces=True,
            ):
                return

    def _frame(self, rows: pa.Table) -> DataFrame:
        return self.spark.createDataFrame(rows, self.table.schema).coalesce(1)


def local_table(spark: SparkSession, path: str, *, keeps_files: bool) -> LocalTable:
    """Return a table whose commits this process makes (`links_commits`), and Spark its checkpoints."""
    return LocalTable(path, partial(CHECKPOINTS.request, spark), keeps_files=keeps_files)


def links_commits(spark: SparkSession, path: str) -> bool:
    """Return whether Spark's commits of this table are hard links that this process can make as well."""
    if is_remote(spark) or is_url(path) or spark.conf.get(LOG_STORE, None) != LOG_STORE_CLASS:
        return False
    configuration: Any = spark.sparkContext._jsc.hadoopConfiguration()
    return str(configuration.get(FILE_SYSTEM, "file:///")).startswith("file:")
