"""Decoding of rows of `entries` into rows of the typed tables. PURE.

The version with which a record is read is a function of the record and of the schemas before it in the log:
its rows do not depend on the driver or the time of the decoding.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from app.schemas import Decoded, LogSchema, RecordDecoder, version_of
from spark_jobs.tables import schemas
from spark_jobs.typed.layout import CompatibilityGroup

COLUMNS: Final = ("index", "term", "timestamp", "key", "value", "headers")
"""Columns of `entries` that decoding needs."""
UNKNOWN: Final = -1
DEAD_LETTERS_SCHEMA: Final = schemas.arrow_schema(schemas.DEAD_LETTERS)


@dataclass
class TypedRows:
    """Rows of a range of `entries`. records: by the first version of their group."""

    records: dict[int, pa.Table] = field(default_factory=dict)
    dead_letters: pa.Table = field(default_factory=DEAD_LETTERS_SCHEMA.empty_table)


class TypedDecoder:
    """Decodes the records of one log. versions: of its schema, oldest first, at least one."""

    def __init__(self, versions: Sequence[LogSchema], layout: Sequence[CompatibilityGroup]) -> None:
        """layout: `compatibility_groups(versions)`."""
        self.versions = list(versions)
        self.layout = list(layout)
        self._indexes = [schema.index for schema in versions]
        self._by_version = {schema.version: schema for schema in versions}
        self._group_of = {
            schema.version: group
            for group in layout
            for schema in versions
            if group.first <= schema.version <= group.last
        }
        self._decoders: dict[int, RecordDecoder] = {}

    def decode(self, entries: pa.Table, version: int | None = None) -> TypedRows:
        """Return the typed rows of `entries`, columns COLUMNS, in their order.

        version: reads all records with this one; None: each with the one in force at its index, or the one
        that it names.
        """
        entries = entries.select(list(COLUMNS))
        has_tombstones = entries["value"].null_count > 0
        present = entries.filter(pc.is_valid(entries["value"])) if has_tombstones else entries
        found = TypedRows()
        pieces: dict[int, list[pa.Table]] = defaultdict(list)
        dead: list[pa.Table] = []
        for number, rows in self._by_versions(present, version):
            if number not in self._by_version:
                dead.append(_unknown(rows, number))
                continue
            group = self._group_of[number]
            decoded = self._decoder(number).decode(_one_chunk(rows["value"]))
            if decoded.rows.num_rows:
                pieces[group.first].append(_typed(rows, decoded, group, number))
            if decoded.errors:
                dead.append(_mismatched(rows, decoded, number))
        found.records = {first: _in_order(tables, "_index") for first, tables in pieces.items()}
        if dead:
            found.dead_letters = _in_order(dead, "index")
        return found

    def in_force_at(self, index: int) -> LogSchema:
        """Return the version with which a record that names none is read."""
        return self.versions[self._place_at(index)]

    def _place_at(self, index: int) -> int:
        return max(0, bisect_left(self._indexes, index) - 1)

    def _by_versions(self, rows: pa.Table, version: int | None) -> list[tuple[int, pa.Table]]:
        """Return the rows of each version; the numbers are those of `_named`."""
        if rows.num_rows == 0:
            return []
        if version is not None:
            return [(version, rows)]
        indexes = rows["index"].to_pylist()
        in_force = self.versions[self._place_at(min(indexes)) : self._place_at(max(indexes)) + 1]
        has_headers = rows["headers"].null_count < len(rows)
        is_named = has_headers or any(schema.format == "avro" for schema in in_force)
        if len(in_force) == 1 and not is_named:
            return [(in_force[0].version, rows)]
        numbers = [self.in_force_at(index).version for index in indexes]
        if is_named:
            headers, values = rows["headers"].to_pylist(), rows["value"].to_pylist()
            numbers = [
                self._named(index, header, value, self._by_version[number])
                for index, header, value, number in zip(indexes, headers, values, numbers, strict=True)
            ]
        places: dict[int, list[int]] = defaultdict(list)
        for place, number in enumerate(numbers):
            places[number].append(place)
        return [(number, rows.take(pa.array(found))) for number, found in sorted(places.items())]

    def _named(
        self, index: int, headers: Sequence[Mapping[str, Any]] | None, value: bytes, in_force: LogSchema
    ) -> int:
        """Return the version that the record names, else the one in force.

        A version that is not known is returned as its negative, a name that is not a number as UNKNOWN.
        A version counts as known from its control record on, and the first one always: so the result does not
        depend on the time of the decoding.
        """
        pairs = {each["name"].encode(): each["value"] or b"" for each in headers or ()}
        named = version_of(pairs, value, in_force.format)
        if named is None:
            return in_force.version
        schema = self._by_version.get(named)
        is_known = schema is not None and (schema.index < index or schema is self.versions[0])
        if is_known:
            return named
        return -named if named > 0 else UNKNOWN

    def _decoder(self, version: int) -> RecordDecoder:
        if version not in self._decoders:
            self._decoders[version] = RecordDecoder(self._by_version, version)
        return self._decoders[version]


def _typed(rows: pa.Table, decoded: Decoded, group: CompatibilityGroup, version: int) -> pa.Table:
    """Return decoded records as rows of their table: narrower types widen, missing fields are null."""
    wanted = schemas.arrow_schema(group.schema)
    count = decoded.rows.num_rows
    kept = rows if count == rows.num_rows else rows.take(decoded.positions)
    columns: dict[str, Any] = {name: decoded.rows.column(name) for name in decoded.rows.schema.names}
    columns |= {f"_{name}": kept[name] for name in ("index", "term", "timestamp", "key")}
    columns["_schema_version"] = pa.repeat(pa.scalar(version, pa.int32()), count)
    columns["_rescued"] = decoded.rescued
    return pa.table(
        [
            columns[each.name].cast(each.type) if each.name in columns else pa.nulls(count, each.type)
            for each in wanted
        ],
        schema=wanted,
    )


def _mismatched(rows: pa.Table, decoded: Decoded, version: int) -> pa.Table:
    kept = rows.take(pa.array([error.position for error in decoded.errors], pa.int64()))
    return _dead(
        kept,
        version,
        [error.reason for error in decoded.errors],
        [error.pointer for error in decoded.errors],
    )


def _unknown(rows: pa.Table, number: int) -> pa.Table:
    """number: the named version, negative; 1 cannot be unknown, so UNKNOWN is a name that is not a number."""
    count = rows.num_rows
    if number == UNKNOWN:
        reason, version = "The header `schema-version` is not the number of a version.", None
    else:
        reason, version = f"Schema version {-number} is not set before this record.", -number
    return _dead(rows, version, [reason] * count, [""] * count)


def _dead(rows: pa.Table, version: int | None, errors: list[str], paths: list[str]) -> pa.Table:
    columns: dict[str, Any] = {name: rows[name] for name in COLUMNS}
    columns["schema_version"] = pa.array([version] * rows.num_rows, pa.int32())
    columns["error"], columns["path"] = pa.array(errors, pa.string()), pa.array(paths, pa.string())
    arrays = [columns[each.name].cast(each.type) for each in DEAD_LETTERS_SCHEMA]
    return pa.table(arrays, schema=DEAD_LETTERS_SCHEMA)


def _in_order(pieces: list[pa.Table], position: str) -> pa.Table:
    return pieces[0] if len(pieces) == 1 else pa.concat_tables(pieces).sort_by(position)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
