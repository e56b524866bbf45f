"""Checks of appends against the newest schema of their log, where that rejects what does not match. PURE.

A turn checks a limited part, so a large append takes several turns and the appends after it wait: they enter
the log in their order. What is checked is the append at the head of the queue, against the schema that is
the newest one when it enters. What may take longer than a turn has (a decoder that is not built yet, a large
record) is checked by the node's workers meanwhile.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from app.errors import SchemaMismatch
from app.log.control_records import SchemaRecord
from app.log.driver_interfaces import WorkerPool
from app.log.schemas import LogSchemas, SchemaVersion, as_log_schema
from app.log.set_schema import REJECT
from app.schemas import RecordDecoder, version_of
from storage.format.records import Headers, RecordColumns, RecordTable
from storage.units import KIB, MIB, NO_INDEX

TURN_COST: Final = MIB  # checked in one turn of the loop, in bytes of values: a few milliseconds
RECORD_COST: Final = 128  # of a record, besides its bytes
FAST_COST: Final = 128 * KIB  # checked at once while all records are known to match: 2 ms at most
PART_COST: Final = 32 * KIB  # checked between two looks at the clock
ASIDE_COST: Final = 48 * KIB  # a part with more, e.g. one large record, is left to the workers
SLOW_FACTOR: Final = 16  # cost of a byte for these two where the rules of a schema may be slow
TURN_MS: Final = 5  # then the next turn continues: records that need the exact rules take far longer
_VALUE, _HEADERS = 2, 3  # columns of BODY_SCHEMA

Values = Sequence[bytes | None]
Decoders = Mapping[int, RecordDecoder | str]  # str: why there is none
_UNKNOWN_VERSION: Final = "The record names a version of the schema that the log does not have."


class RecordCheck:
    """Progress of the check of one append: records before `position` match, or the last one is `refusal`.

    is_in_doubt: the exact rules must decide about a record. runs_aside: the workers check a part. is_dropped:
    no append waits for the result.
    """

    __slots__ = ("is_dropped", "is_in_doubt", "position", "refusal", "runs_aside", "schema")

    def __init__(self, schema: SchemaVersion) -> None:
        self.schema = schema
        self.position = 0
        self.refusal: SchemaMismatch | None = None
        self.is_in_doubt = False
        self.runs_aside = False
        self.is_dropped = False


class _Part:
    """Values of some records of an append, in runs that name the same version of the schema.

    runs: (version, number of its first record in the append, values).
    """

    __slots__ = ("count", "runs")

    def __init__(self, runs: list[tuple[int, int, Values]]) -> None:
        self.runs = runs
        self.count = sum(len(values) for _, _, values in runs)

    @property
    def size_bytes(self) -> int:
        return sum(len(value) for _, _, values in self.runs for value in values if value is not None)


@lru_cache(maxsize=64)
def record_decoder(record: SchemaRecord) -> RecordDecoder:
    """Return the decoder of a version. It is remembered: of a large definition it takes 1 s to build.

    Raises SchemaInvalid, SchemaLibraryMissing.
    """
    schema = as_log_schema(SchemaVersion(NO_INDEX, record))
    return RecordDecoder({schema.version: schema}, schema.version)


class SchemaGate:
    """The checks of one log at its leader. `refresh` begins a turn."""

    def __init__(
        self, monotonic_ms: Callable[[], int], workers: WorkerPool, advanced: Callable[[], None]
    ) -> None:
        """advanced(): the workers have checked a part; a turn is due."""
        self._monotonic_ms = monotonic_ms
        self._workers = workers
        self._advanced = advanced
        self._until_ms = 0  # of this turn
        self._schema: SchemaVersion | None = None  # that rejects
        self._seen: SchemaVersion | None = None
        self._known: dict[int, SchemaRecord] = {}  # all versions
        self._decoders: dict[int, RecordDecoder | str] = {}
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
            if check is not None:
                check.is_dropped = True
            check = RecordCheck(schema)
        newest = self._decoders.get(schema.version)
        factor = SLOW_FACTOR if isinstance(newest, RecordDecoder) and newest.is_slow else 1
        record_cost = RECORD_COST + factor * records.size_bytes // records.count
        while check.refusal is None and check.position < records.count:
            if check.runs_aside or not self._has_time():
                return check, False
            is_fast = isinstance(newest, RecordDecoder) and newest.is_fast and not check.is_in_doubt
            count = max(1, min(self._left, FAST_COST if is_fast else PART_COST) // record_cost)
            last = min(records.count, check.position + count)
            part = self._part_of(schema, records, check.position, last)
            if not is_fast:
                self._check_each(part, check, factor)
                continue
            fits = records.size_bytes <= FAST_COST or part.size_bytes <= FAST_COST
            if fits and _is_known_to_match(part, self._decoders):
                check.position = last
                self._left -= part.count * record_cost
            else:
                check.is_in_doubt = True
        return check, True

    def _has_time(self) -> bool:
        """Return whether this turn may check one more part: each checks at least one, however late it is."""
        return self._left >= TURN_COST or (self._left > 0 and self._monotonic_ms() < self._until_ms)

    def _check_each(self, part: _Part, check: RecordCheck, factor: int) -> None:
        """Check each record of a part, here or by the workers. factor: of the cost of its bytes."""
        size_bytes, records_cost = part.size_bytes, part.count * RECORD_COST
        if records_cost + factor * size_bytes > ASIDE_COST or self._has_unbuilt(part):
            self._check_aside(part, check)
            return
        check.refusal = _mismatch(part, self._decoders)
        check.position += part.count
        self._left -= records_cost + size_bytes

    def _has_unbuilt(self, part: _Part) -> bool:
        return any(version in self._known and version not in self._decoders for version, _, _ in part.runs)

    def _check_aside(self, part: _Part, check: RecordCheck) -> None:
        """Let the workers check a part, and build the decoders for it."""
        decoders, known = self._decoders, self._known
        needed = {version: known[version] for version, _, _ in part.runs if version in known}
        check.runs_aside = True

        def work() -> tuple[Decoders, SchemaMismatch | None]:
            if check.is_dropped:
                return {}, None
            built = {version: _decoder(record) for version, record in needed.items()}
            return built, _mismatch(part, built)

        def then(result: Any, error: BaseException | None) -> None:
            if error is None:
                built, refusal = result
                decoders.update(built)
            else:
                refusal = SchemaMismatch(check.schema.version, check.position, "", _fault(error))
            check.runs_aside = False
            check.refusal = refusal
            check.position += part.count
            self._advanced()

        self._workers.run(work, then)

    def judge(self, check: RecordCheck | None) -> None:
        """Raise SchemaMismatch if the schema rejects the append of this complete check."""
        if self._schema is not None and check is not None and check.refusal is not None:
            raise check.refusal

    @staticmethod
    def _part_of(schema: SchemaVersion, records: RecordColumns | RecordTable, first: int, last: int) -> _Part:
        values, headers = _slice_of(records, first, last)
        if headers is None and schema.record.format != "avro":
            return _Part([(schema.version, first, values)])
        runs: list[tuple[int, int, Values]] = []
        start = 0
        versions = [
            _version_of(schema, value, each)
            for value, each in zip(values, headers or [None] * len(values), strict=True)
        ]
        for position in range(1, len(values) + 1):
            if position == len(values) or versions[position] != versions[start]:
                runs.append((versions[start], first + start, values[start:position]))
                start = position
        return _Part(runs)


def _version_of(schema: SchemaVersion, value: bytes | None, headers: Headers | None) -> int:
    given = {name.encode(): content for name, content in headers or ()}
    named = version_of(given, value, schema.record.format)
    return schema.version if named is None else named


def _decoder(record: SchemaRecord) -> RecordDecoder | str:
    """Return the decoder of a version, or why this node cannot check any record with it."""
    try:
        return record_decoder(record)
    except Exception as error:  # of a parser: within a turn of the driver it would stop the node
        return _fault(error)


def _fault(error: BaseException) -> str:
    return f"This node cannot check records with the schema: {error}"


def _is_known_to_match(part: _Part, decoders: Decoders) -> bool:
    """Return true if the fast check accepts all records."""
    return all(
        isinstance(decoder := decoders.get(version), RecordDecoder)
        and decoder.is_fast
        and decoder.accepts(values)
        for version, _, values in part.runs
    )


def _mismatch(part: _Part, decoders: Decoders) -> SchemaMismatch | None:
    """Return the first mismatch of a part; its record is counted from the first one of the append."""
    for version, first, values in part.runs:
        decoder = decoders.get(version, _UNKNOWN_VERSION)
        if isinstance(decoder, str):
            held = next((number for number, value in enumerate(values) if value is not None), None)
            if held is not None:
                return SchemaMismatch(version, first + held, "", decoder)
            continue
        try:
            found = decoder.check(values)
        except Exception as error:  # of a reader: within a turn of the driver it would stop the node
            return SchemaMismatch(version, first, "", _fault(error))
        if found is not None:
            return SchemaMismatch(version, first + found.position, found.pointer, found.reason)
    return None


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
