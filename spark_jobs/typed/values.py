"""Values of the typed tables, checked: each row is what its record in `entries` gives when it is read again,
and each row of `current` is the row of `records` with its index."""

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from app.schemas import LogSchema
from spark_jobs.tables import schemas
from spark_jobs.tables.table import quoted_name
from spark_jobs.typed.decoding import COLUMNS, TypedDecoder
from spark_jobs.typed.layout import compatibility_groups, is_part

HELD_VERSION = "held_version"  # of the schema, of the record's row in `records`
# formats of times in JSON; the default ones end at milliseconds
EXACT = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}
# columns of dead letters that are compared, which are not the texts of errors
LETTER = ("index", "term", "timestamp", "schema_version", "value", "key", "headers")


def wrong_records(
    entries: DataFrame,
    records: Mapping[int, DataFrame],
    versions: Sequence[LogSchema],
    first: int,
    until: int,
) -> DataFrame:
    """Return the rows of one table `records` that differ from the records before `until`: index, problem.

    records: of all compatibility groups, by first version. versions: of the schema, oldest first. first: of
    the group that is compared. A dead letter that a replay moved is read with the version in its row.
    """
    schema = next(each.schema for each in compatibility_groups(versions) if each.first == first)
    due = _decoded(entries, records, versions, first, until).select(*map(quoted_name, schema.names))
    return _differences(due, records[first].where(F.col("_index") < until), schema, "_index")


def wrong_letters(
    entries: DataFrame,
    records: Mapping[int, DataFrame],
    letters: DataFrame,
    versions: Sequence[LogSchema],
    until: int,
) -> DataFrame:
    """As `wrong_records`, of `dead_letters`, except for the reasons."""
    due = _decoded(entries, records, versions, None, until).select(*LETTER)
    compared = StructType([schemas.DEAD_LETTERS[name] for name in LETTER])
    return _differences(due, letters.where(F.col("index") < until), compared, "index")


def wrong_copies(records: DataFrame, current: DataFrame, schema: StructType) -> DataFrame:
    """Return the rows of `current` that differ from those of `records` with their index: index, problem."""
    in_both = records.select("_index").join(current.select("_index"), "_index")
    due, held = (rows.join(in_both, "_index", "left_semi") for rows in (records, current))
    return _differences(due, held, schema, "_index")


def _decoded(
    entries: DataFrame,
    records: Mapping[int, DataFrame],
    versions: Sequence[LogSchema],
    first: int | None,
    until: int,
) -> DataFrame:
    """Return the rows of a group that the records before `until` give. first: None for the dead letters."""
    layout = compatibility_groups(versions)
    schema = (
        schemas.DEAD_LETTERS if first is None else next(each.schema for each in layout if each.first == first)
    )
    known = list(versions)

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = TypedDecoder(known, compatibility_groups(known))
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            typed = decoder.decode(rows)
            moved = rows.filter(
                pc.and_(
                    pc.is_in(rows["index"], typed.dead_letters["index"].combine_chunks()),
                    pc.is_valid(rows[HELD_VERSION]),
                )
            )
            if first is None:
                left = pc.is_in(typed.dead_letters["index"], moved["index"].combine_chunks())
                yield from typed.dead_letters.filter(pc.invert(left)).to_batches()
                continue
            if first in typed.records:
                yield from typed.records[first].to_batches()
            for version in pc.unique(moved[HELD_VERSION]).to_pylist():
                again = decoder.decode(moved.filter(pc.equal(moved[HELD_VERSION], version)), version)
                if first in again.records:
                    yield from again.records[first].to_batches()

    of_rows = (
        each.select(F.col("_index").alias("index"), F.col("_schema_version").alias(HELD_VERSION))
        for each in records.values()
    )
    held = reduce(DataFrame.unionAll, of_rows)
    both = entries.where(F.col("index") < until).select(*COLUMNS).join(held, "index", "left")
    return both.mapInArrow(decode, schema)


def _differences(due: DataFrame, held: DataFrame, schema: StructType, position: str) -> DataFrame:
    """Compare the columns `schema` of rows by index: index, problem."""
    due, known = _in_columns(due, schema), _in_columns(held, schema)
    same_row = F.col(f"d.{position}") == F.col(f"h.{position}")
    both = due.alias("d").join(known.alias("h"), same_row, "full_outer")
    differing = F.concat_ws(
        ", ",
        *(
            F.when(~_comparable("d", each).eqNullSafe(_comparable("h", each)), F.lit(each.name))
            for each in schema.fields
            if each.name != position
        ),
    )
    problem = (
        F.when(F.col(f"d.{position}").isNull(), F.lit("its row belongs in another table"))
        .when(F.col(f"h.{position}").isNull(), F.lit("its row is missing"))
        .when(differing != "", F.concat(F.lit("its row differs from the record in "), differing))
    )
    index = F.coalesce(f"d.{position}", f"h.{position}").alias("index")
    return both.select(index, problem.alias("problem")).where("problem IS NOT NULL")


def _in_columns(rows: DataFrame, schema: StructType) -> DataFrame:
    """Return these columns, null for those that the rows lack. A table adds nested fields after those that it
    has: here they are in the order of the schema, so that Spark can compare them."""
    held = {each.name: each.dataType for each in rows.schema}
    return rows.select(
        *(
            _in_order(F.col(quoted_name(each.name)), held[each.name], each.dataType).alias(each.name)
            if each.name in held
            else F.lit(None).cast(each.dataType).alias(each.name)
            for each in schema
        )
    )


def _in_order(value: Column, held: DataType, wanted: DataType) -> Column:
    """Return a value of the type `held` with the fields of `wanted` in their order."""
    match held, wanted:
        case _ if held.simpleString() == wanted.simpleString():
            return value
        case StructType(), StructType():
            known = {each.name: each.dataType for each in held}
            parts = (
                _in_order(value.getField(each.name), known[each.name], each.dataType)
                if each.name in known
                else F.lit(None).cast(each.dataType)
                for each in wanted
            )
            named = (part.alias(name) for part, name in zip(parts, wanted.names, strict=True))
            return F.when(value.isNotNull(), F.struct(*named))
        case ArrayType(), ArrayType():
            return F.transform(value, lambda each: _in_order(each, held.elementType, wanted.elementType))
        case MapType(), MapType():
            return F.transform_values(
                value, lambda _, each: _in_order(each, held.valueType, wanted.valueType)
            )
    return value


def _comparable(side: str, column: StructField) -> Column:
    value = F.col(f"{side}.{quoted_name(column.name)}")
    return F.to_json(F.struct(value), EXACT) if is_part(MapType, column.dataType) else value
