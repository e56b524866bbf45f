"""Time travel by log: all tables of a log as of one point of the log.

cut = at(spark, "http://127.0.0.1:8101", epoch=7)
cut["entries"].count(), cut["watermarks"].show()
"""

from collections.abc import Iterator, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from app.client import CommitlogClient
from app.client.tables import Tables
from app.tables.names import ENTRIES


class TablesAt(Mapping[str, DataFrame]):
    """The tables by name. index: the last one of the point; `entries` ends there, also if its version holds
    more.

    versions: of Delta, by table. exact: the version of `entries` itself ends there.
    """

    def __init__(
        self, tables: Mapping[str, DataFrame], index: int, versions: Mapping[str, int], exact: bool
    ) -> None:
        self._tables = tables
        self.index = index
        self.versions = versions
        self.exact = exact

    def __getitem__(self, name: str) -> DataFrame:
        return self._tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)


def at(
    spark: SparkSession, endpoint: str, log: str = "default", *, token: str | None = None, **point: int
) -> TablesAt:
    """Return the log's tables at a point: one of index (inclusive), timestamp (ms) and epoch (its end).

    endpoint: base URLs of nodes, comma-separated. Raises ClientError: NotFound (no-such-cut) for a point that
    is not in the tables.
    """
    with CommitlogClient([url.strip() for url in endpoint.split(",")], log=log, token=token) as client:
        known = Tables(client)
        cut = known.at(**point)
        paths = {table.name: table.path for table in known.all()}
    opened = {
        name: spark.read.format("delta").option("versionAsOf", version).load(paths[name])
        for name, version in cut.versions.items()
    }
    if ENTRIES in opened:
        opened[ENTRIES] = opened[ENTRIES].where(F.col("index") <= cut.index)
    return TablesAt(opened, cut.index, cut.versions, cut.exact)
