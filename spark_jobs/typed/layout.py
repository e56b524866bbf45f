"""Layout of the typed tables: which table holds the records of a schema version, and its columns. PURE.

Versions that one table can hold form a compatibility group: each reads what the one before it wrote, and
Delta adds its columns and widens its types in place. A version for which this is not so begins a new group,
with tables of its own: `records_v{n}` and `current_v{n}`, n being that version.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    MapType,
    StructField,
    StructType,
)

from app.schemas import LogSchema, SchemaInvalid, arrow_schema_of, columns_of, differences
from app.schemas.columns import CLUSTER_COLUMNS_MAX
from app.schemas.ddl import type_of_ddl
from app.schemas.differences import widens
from app.tables.names import CURRENT, RECORDS
from spark_jobs.tables import schemas
from spark_jobs.tables.table import TYPED_COLUMNS, Table

UNORDERED = (BinaryType, BooleanType)  # Delta has no statistics of their values, and does not cluster by them


@dataclass(frozen=True)
class CompatibilityGroup:
    """Schema versions whose records are in one table.

    first, last: its versions, inclusive. from_index: no record before it is in the table: the index of the
    control record of `first`, 0 for the first group. columns: the schema's own, all nullable, with the
    types of the newest version. comments: of these columns. key_columns, cluster_by: of the newest version.
    """

    first: int
    last: int
    from_index: int
    columns: StructType
    comments: Mapping[str, str] = field(repr=False)
    key_columns: tuple[str, ...]
    cluster_by: tuple[str, ...]
    is_first: bool

    def name_of(self, table: str) -> str:
        """Return the name of its `records` or `current`."""
        return table if self.is_first else f"{table}_v{self.first}"

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row of `current`."""
        return self.key_columns or ("_key",)

    @property
    def schema(self) -> StructType:
        return StructType([*schemas.TYPED.fields, *self.columns.fields])

    def records(self) -> Table:
        return self._table(RECORDS, self.cluster_by or ("_index",), ("_index", "_timestamp"))

    def current(self) -> Table:
        return self._table(CURRENT, self.keys, ("_index",))

    def _table(self, name: str, wanted: tuple[str, ...], statistics: tuple[str, ...]) -> Table:
        kinds = {each.name: each.dataType for each in self.schema}
        ordered = [each for each in wanted if not isinstance(kinds[each], UNORDERED)]
        cluster_by = tuple(ordered[:CLUSTER_COLUMNS_MAX]) or ("_index",)
        return Table(
            self.name_of(name),
            self.schema,
            cluster_by=cluster_by,
            statistics=tuple(dict.fromkeys([*statistics, *cluster_by])),
            columns={**TYPED_COLUMNS, **self.comments},
        )


def compatibility_groups(versions: Sequence[LogSchema]) -> list[CompatibilityGroup]:
    """Return the compatibility groups of all versions of a log, oldest first.

    Raises SchemaInvalid, SchemaLibraryMissing.
    """
    found: list[CompatibilityGroup] = []
    before: LogSchema | None = None
    for schema in versions:
        same = before is not None and _is_followed(before, schema)
        grown = found.pop() if same else None
        from_index = 0 if not found else schema.index
        found.append(
            CompatibilityGroup(
                first=schema.version if grown is None else grown.first,
                last=schema.version,
                from_index=from_index if grown is None else grown.from_index,
                columns=nullable(from_arrow_schema(arrow_schema_of(schema))),
                comments={column.name: column.comment for column in columns_of(schema)},
                key_columns=schema.key_columns,
                cluster_by=schema.cluster_by,
                is_first=not found,
            )
        )
        before = schema
    return found


def _is_followed(before: LogSchema, schema: LogSchema) -> bool:
    """Return whether the tables of the version before hold the records of this one too.

    A version that was checked when it was set is compatible by the rules of then, which may have become
    narrower: its rows are in the tables of the version before.
    """
    if schema.compatibility == "backward":
        return True
    return all(each.is_followed for each in differences(before, schema))


def nullable(struct: StructType) -> StructType:
    """Return the columns with every part nullable: older files lack what newer versions require."""
    return StructType([StructField(each.name, _nullable(each.dataType)) for each in struct.fields])


def _nullable(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return nullable(kind)
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind


def is_part(wanted: type[DataType], kind: DataType) -> bool:
    """Return whether a type is `wanted`, or has a part that is."""
    if isinstance(kind, wanted):
        return True
    match kind:
        case StructType():
            return any(is_part(wanted, each.dataType) for each in kind.fields)
        case ArrayType():
            return is_part(wanted, kind.elementType)
        case MapType():
            return is_part(wanted, kind.keyType) or is_part(wanted, kind.valueType)
    return False


@dataclass(frozen=True)
class ColumnChange:
    """One change of a table's columns. path: of names; `element`, `key` and `value` name parts of arrays and
    maps. type: the new one. held: the present one, None for a column that is added."""

    path: tuple[str, ...]
    type: DataType
    held: DataType | None


def changes(held: DataType, wanted: DataType, path: tuple[str, ...] = ()) -> Iterator[ColumnChange]:
    """Yield what a table with the columns `held` lacks to hold `wanted`. Columns of newer versions stay."""
    if isinstance(held, StructType) and isinstance(wanted, StructType):
        known = {each.name.lower(): each.dataType for each in held.fields}
        for each in wanted.fields:
            if each.name.lower() in known:
                yield from changes(known[each.name.lower()], each.dataType, (*path, each.name))
            else:
                yield ColumnChange((*path, each.name), each.dataType, held=None)
    elif isinstance(held, ArrayType) and isinstance(wanted, ArrayType):
        yield from changes(held.elementType, wanted.elementType, (*path, "element"))
    elif isinstance(held, MapType) and isinstance(wanted, MapType):
        yield from changes(held.keyType, wanted.keyType, (*path, "key"))
        yield from changes(held.valueType, wanted.valueType, (*path, "value"))
    elif held != wanted:
        yield ColumnChange(path, wanted, held=held)


def is_widened(held: DataType, wanted: DataType) -> bool:
    """Return whether Delta can change a column of the type `held` to `wanted`."""
    try:
        return widens(type_of_ddl(held.simpleString()), type_of_ddl(wanted.simpleString()))
    except SchemaInvalid:  # a type that no schema gives
        return False
