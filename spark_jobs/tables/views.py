"""The tables of a log by name, for SQL: temporary views, including one of the present watermarks.

A schema with incompatible versions has several compatibility groups, each with typed tables of its own:
`records`, `records_v3`. The views `records` and `current` are over all of them; `records_v3` is one group.
"""

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from app.errors import ConfigError
from app.schemas.data_types import folded
from app.tables.catalog import is_typed
from app.tables.delta_log import DeltaLog, table_folders
from app.tables.names import CURRENT, KEYS_PROPERTY, RECORDS
from spark_jobs.session.locations import is_url, location
from spark_jobs.tables.metadata import table_properties
from spark_jobs.tables.table import (
    ENTRIES,
    TABLES,
    TYPED_TABLES,
    WATERMARKS,
    is_table,
    quoted_name,
    read_table,
    table_path,
)
from spark_jobs.tables.transforms import latest_watermarks

LATEST_WATERMARKS = "latest_watermarks"
_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
_NESTED = (StructType, ArrayType, MapType)


def create_views(spark: SparkSession, tables: Path | str, log: str = "default") -> list[str]:
    """Create a view of each existing table, and `latest_watermarks`. Return their names.

    tables: folder or URL; a relative path starts at the current folder. At a URL, the typed
    tables of compatibility groups after the first are not found. Raises ConfigError when it contains no
    table of the log.
    """
    paths = {table.name: table_path(tables, log, table) for table in (*TABLES, *TYPED_TABLES)}
    folder = f"{location(str(tables)).rstrip('/')}/{log}"
    if not is_url(folder):
        paths |= {name: f"{folder}/{name}" for name in table_folders(folder) if is_typed(name)}
    found = {name: read_table(spark, path) for name, path in paths.items() if _exists(spark, path)}
    if not found:
        raise _no_table(tables, log)
    if WATERMARKS.name in found:
        found[LATEST_WATERMARKS] = latest_watermarks(found[WATERMARKS.name])
    views = dict(found)
    records, current = (_groups_of(found, kind) for kind in (RECORDS, CURRENT))
    if records:
        views[RECORDS] = united(list(records.values()))
    if current:
        newest = table_properties(spark, paths[list(current)[-1]])
        views[CURRENT] = newest_rows(
            list(current.values()), json.loads(newest.get(KEYS_PROPERTY, '["_key"]'))
        )
    for name, rows in views.items():
        rows.createOrReplaceTempView(name)
    return list(views)


def require_tables(spark: SparkSession, tables: Path | str, log: str) -> None:
    """Raise ConfigError if the folder or URL `tables` has no table `entries` of the log."""
    if not _exists(spark, table_path(tables, log, ENTRIES)):
        raise _no_table(tables, log)


def _no_table(tables: Path | str, log: str) -> ConfigError:
    return ConfigError(
        f"{location(str(tables))} contains no table of log {log!r}: set the folder that the job writes "
        "to (`commitlog up` and `commitlog materialize`: commitlog-data/tables, `commitlog demo`: "
        "demo-data/tables)"
    )


def _exists(spark: SparkSession, path: str) -> bool:
    """Return whether a table exists; without Spark, which takes a second for all tables, where possible."""
    return is_table(spark, path) if is_url(path) else bool(DeltaLog(path).versions())


def _groups_of(found: Mapping[str, DataFrame], kind: str) -> dict[str, DataFrame]:
    """Return the tables `records` or `current` of all compatibility groups, oldest first."""
    names = (name for name in found if is_typed(name, kind))
    return {name: found[name] for name in sorted(names, key=lambda name: int(name.partition("_v")[2] or 0))}


def united(groups: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of a table of all compatibility groups, oldest first, by the names of the columns.

    A column that has several types is a bigint if all of them are integers, a double for float and double,
    else a string: JSON for nested types, base64 for binary.
    """
    kinds: dict[str, list[DataType]] = {}
    names: dict[str, str] = {}
    for rows in reversed(groups):
        for each in rows.schema:
            kinds.setdefault(folded(each.name), []).append(each.dataType)
            names.setdefault(folded(each.name), each.name)
    wanted = {name: _common(found) for name, found in kinds.items()}
    pieces = [
        rows.select(
            *(
                _as(F.col(quoted_name(each.name)), each.dataType, wanted[folded(each.name)]).alias(
                    names[folded(each.name)]
                )
                for each in rows.schema
            )
        )
        for rows in groups
    ]
    return reduce(lambda rows, more: more.unionByName(rows, allowMissingColumns=True), pieces)


def newest_rows(groups: Sequence[DataFrame], keys: Sequence[str]) -> DataFrame:
    """Return the newest row of each key over `current` of all compatibility groups.

    keys: of the newest group; a row that lacks one is of an older group with other keys, and stays.
    """
    rows = united(groups)
    if len(groups) == 1:
        return rows
    own = [F.col(quoted_name(name)) for name in keys]
    place = F.row_number().over(Window.partitionBy(*own).orderBy(F.desc("_index"))).alias("place of key")
    lacks = reduce(Column.__or__, (key.isNull() for key in own))
    return rows.select("*", place).where((F.col("place of key") == 1) | lacks).drop("place of key")


def _common(kinds: Sequence[DataType]) -> DataType:
    if all(kind == kinds[0] for kind in kinds):
        return kinds[0]
    for wanted, accepted in ((LongType(), _INTEGERS), (DoubleType(), (FloatType, DoubleType))):
        if all(isinstance(kind, accepted) for kind in kinds):
            return wanted
    return StringType()


def _as(column: Column, kind: DataType, wanted: DataType) -> Column:
    if kind == wanted:
        return column
    if isinstance(wanted, StringType):
        if isinstance(kind, _NESTED):
            return F.to_json(column)
        if isinstance(kind, BinaryType):
            return F.base64(column)
    return column.cast(wanted)
