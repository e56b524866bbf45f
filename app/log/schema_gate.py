"""Checks of appends against the newest schema of their log, where that rejects what does not match. PURE.

A turn checks a limited part, so a large append takes several turns and the appends after it wait: they enter
the log in their order. What is checked is the append at the head of the queue, against the schema that is
the newest one when it enters.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from app.errors import SchemaMismatch
from app.log.control_records import SchemaRecord
from app.log.schemas import LogSchemas, SchemaVersion, as_log_schema
from app.log.set_schema import REJECT
from app.schemas import RecordDecoder, version_of
from storage.format.records import Headers, RecordColumns, RecordTable
from storage.units import NO_INDEX

TURN_COST: Final = 512 * 1024  # checked in one turn of the loop, in bytes of values: a few milliseconds
RECORD_COST: Final = 128  # of a record, besides its bytes
PART_COST: Final = 32 * 1024  # checked between two looks at the clock
TURN_MS: Final = 5  # then the next turn continues: records that need the exact rules take far longer
_VALUE, _HEADERS = 2, 3  # columns of BODY_SCHEMA

Values = Sequence[bytes | None]


class RecordCheck:
    """Progress of the check of one append: records before `position` match, or the last one is `refusal`."""

    __slots__ = ("position", "refusal", "schema")

    def __init__(self, schema: SchemaVersion) -> None:
        self.schema = schema
        self.position = 0
        self.refusal: SchemaMismatch | None = None


@lru_cache(maxsize=64)
def record_decoder(record: SchemaRecord) -> RecordDecoder:
    """Return the decoder of a version. It is remembered: of a large definition it takes 0.1 s to build.

    Raises SchemaInvalid, SchemaLibraryMissing.
    """
    schema = as_log_schema(SchemaVersion(NO_INDEX, record))
    return RecordDecoder({schema.version: schema}, schema.version)


class SchemaGate:
    """The checks of one log at its leader. `refresh` begins a turn."""

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._until_ms = 0  # of this turn
        self._schema: SchemaVersion | None = None  # that rejects
        self._seen: SchemaVersion | None = None
        self._known: dict[int, SchemaRecord] = {}  # all versions
        self._decoders: dict[int, RecordDecoder] = {}
        self._left = 0  # of TURN_COST

    def refresh(self, schemas: LogSchemas) -> bool:
        """Take the newest schema of the log, and return whether appends must be checked."""
        newest = schemas.newest
        if newest is not self._seen:
            self._seen = newest
            self._schema = newest if newest is not None and newest.record.on_invalid == REJECT else None
            self._known = {each.version: each.record for each in schemas.versions}
            self._decoders = {}
        if self._schema is None:
            return False
        self._left = TURN_COST
        self._until_ms = self._monotonic_ms() + TURN_MS
        return True

    def check(
        self, records: RecordColumns | RecordTable, check: RecordCheck | None
    ) -> tuple[RecordCheck, bool]:
        """Continue the check of an append, and return it with whether it is complete.

        check: of an earlier turn, None for a new one. It begins again if the schema has changed since.
        """
        schema = self._schema
        if schema is None:
            raise ValueError("the log has no schema that rejects")
        if check is None or check.schema is not schema:
            check = RecordCheck(schema)
        record_cost = RECORD_COST + records.size_bytes // records.count
        while check.refusal is None and check.position < records.count:
            if self._left < TURN_COST and (self._left <= 0 or self._monotonic_ms() >= self._until_ms):
                return check, False  # each turn checks at least one part, however late it begins
            count = max(1, min(self._left, PART_COST) // record_cost)
            first, last = check.position, min(records.count, check.position + count)
            check.refusal = self._first_mismatch(schema, records, first, last)
            check.position = last
            self._left -= (last - first) * record_cost
        return check, True

    def judge(self, check: RecordCheck | None) -> None:
        """Raise SchemaMismatch if the schema rejects the append of this complete check."""
        if self._schema is not None and check is not None and check.refusal is not None:
            raise check.refusal

    def _first_mismatch(
        self, schema: SchemaVersion, records: RecordColumns | RecordTable, first: int, last: int
    ) -> SchemaMismatch | None:
        values, headers = _slice_of(records, first, last)
        if headers is None and schema.record.format != "avro":
            return self._mismatch(schema.version, values, first)
        start = 0  # of a run of records that name the same version
        versions = [
            self._version_of(schema, value, each)
            for value, each in zip(values, headers or [None] * len(values), strict=True)
        ]
        for position in range(1, len(values) + 1):
            if position == len(values) or versions[position] != versions[start]:
                found = self._mismatch(versions[start], values[start:position], first + start)
                if found is not None:
                    return found
                start = position
        return None

    @staticmethod
    def _version_of(schema: SchemaVersion, value: bytes | None, headers: Headers | None) -> int:
        given = {name.encode(): content for name, content in headers or ()}
        named = version_of(given, value, schema.record.format)
        return schema.version if named is None else named

    def _mismatch(self, version: int, values: Values, first: int) -> SchemaMismatch | None:
        """Return the first mismatch of values with the version; `first`: record number of the first value."""
        if version not in self._known:
            held = next((number for number, value in enumerate(values) if value is not None), None)
            reason = "The record names a version of the schema that the log does not have."
            return None if held is None else SchemaMismatch(version, first + held, "", reason)
        try:
            if version not in self._decoders:
                self._decoders[version] = record_decoder(self._known[version])
            found = self._decoders[version].check(values)
        except Exception as error:  # of a parser: within a turn of the driver it would stop the node
            reason = f"This node cannot check records with the schema: {error}"
            return SchemaMismatch(version, first, "", reason)
        if found is None:
            return None
        return SchemaMismatch(version, first + found.position, found.pointer, found.reason)


def _slice_of(
    records: RecordColumns | RecordTable, first: int, last: int
) -> tuple[Values, Sequence[Headers | None] | None]:
    """Return values and headers of the records from `first` to before `last`; None when none has headers."""
    if isinstance(records, RecordColumns):
        given = records.headers[first:last]
        return records.values[first:last], given if any(given) else None
    rows = records.records.slice(first, last - first)
    values: Values = rows.column(_VALUE).to_pylist()
    if rows.column(_HEADERS).null_count == len(values):
        return values, None
    lists = rows.column(_HEADERS).to_pylist()
    return values, [
        None if each is None else [(header["name"], header["value"]) for header in each] for each in lists
    ]
