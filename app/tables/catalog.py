"""The Delta tables of one log: their list, their progress, and the versions of a point of the log.

A commit of `entries` records the range of indexes that it adds (`until_index`, exclusive): the table holds
every data record before it. A commit of `events` records the newest committed index that its events report;
the tables derived from events are written before it. Compaction and similar commits record nothing. Blocks on
I/O.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from app.tables.delta_log import Commit, DeltaLog, DeltaLogError, DeltaSnapshot, file_system_of, table_folders
from app.tables.names import (
    BEGIN_PROPERTY,
    CATALOG_NAMES_FILE,
    COVERED_INDEX,
    CURRENT,
    DEAD_LETTERS,
    ENTRIES,
    EPOCH_TABLES,
    JOURNAL_TABLES,
    JOURNALS,
    LOG_ID_PROPERTY,
    RECORDS,
    application_of,
    end_application_of,
)

KEY: Final = "index"
EPOCH: Final = "epoch"
NONE: Final = -1
RESTORE: Final = "RESTORE"  # Delta's name for a commit that restores an earlier version


@dataclass(frozen=True, slots=True)
class TableState:
    """State of one table.

    held_index: of `entries`, every data record up to it is a row; of the typed tables, every one up to it was
    read with the schema; of the tables of the journals, the newest
    committed index that their events report; inclusive, None if it is not recorded. last_epoch: of the tables
    of epochs, the newest one. log_id: the log of the records of `entries`, None if it is not recorded.
    committed_ms: time of the commit of the version, None if its file was removed. catalog_name: name in a
    catalog of Spark, as the job with --catalog registered it; None without one. begin_index: of `entries`:
    no record before it is a row of a table, for the log began there.
    """

    name: str
    path: str
    version: int
    held_index: int | None
    log_id: str | None
    last_epoch: int | None = None
    committed_ms: int | None = None
    catalog_name: str | None = None
    begin_index: int = 0


@dataclass(frozen=True, slots=True)
class TablesCut:
    """The tables at a point of the log. exact: that version of `entries` holds nothing after the point."""

    versions: Mapping[str, int]
    exact: bool


@dataclass(frozen=True, slots=True)
class _KnownEnd:
    """End of a typed table at a version. commit: of that version, None if its file was removed."""

    version: int
    commit: Commit | None
    held_index: int


def catalog_names(folder: str) -> dict[str, str]:
    """Return the names in a catalog of the tables below ROOT/LOG, by table; empty without a catalog.

    Raises DeltaLogError for a file that cannot be read.
    """
    files, path = file_system_of(f"{folder}/{CATALOG_NAMES_FILE}")
    try:
        with files.open_input_file(path) as file:
            names = json.loads(file.read())
        if not isinstance(names, dict):
            raise ValueError("it is not a JSON object")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DeltaLogError(folder, f"{CATALOG_NAMES_FILE} cannot be read: {error}") from error
    return {table: name for table, name in names.items() if isinstance(name, str)}


class LogTables:
    """The tables below ROOT/LOG. Not safe for use by two threads."""

    def __init__(self, root: str, log: str) -> None:
        self._folder = f"{root.rstrip('/')}/{log}"
        self._logs: dict[str, DeltaLog] = {}
        self._held = (NONE, NONE)  # the newest checked version of `entries`, and what it holds
        self._ends: dict[str, _KnownEnd] = {}  # of `records` and `dead_letters`
        self._covered: tuple[int, int | None] = (NONE, None)  # the same of `events`
        self._committed: dict[str, tuple[int, int | None]] = {}  # of each table: version, time of its commit

    def all(self) -> list[TableState]:
        """Return the tables by name. Raises DeltaLogError."""
        names = catalog_names(self._folder)
        found = [self._state(name) for name in table_folders(self._folder)]
        return [replace(state, catalog_name=names.get(state.name)) for state in found if state is not None]

    def find(self, name: str) -> TableState | None:
        """Return the table, None if it does not exist or has no commit. Raises DeltaLogError."""
        state = self._state(name) if name in table_folders(self._folder) else None
        return state and replace(state, catalog_name=catalog_names(self._folder).get(name))

    def cut(self, index: int, held_index: int) -> TablesCut | None:
        """Return the first version of `entries` that holds every data record up to `index`, and of each other
        table the newest one before `entries` advanced: they follow it by seconds. None if there is no such
        version.

        held_index: what the newest version holds, including control records after its last row. Raises
        DeltaLogError.
        """
        entries = self._log(ENTRIES)
        if ENTRIES not in table_folders(self._folder) or index > held_index:
            return None
        history = entries.versions()
        position = _first(history, lambda version: _held(entries, history.start, version) >= index)
        if position == history.stop:
            position -= 1  # only control records are between its end and the point
        if entries.commit(position) is None:
            return None
        until_ms = _followed_at(entries, range(position + 1, history.stop))
        versions = {ENTRIES: position}
        for name in table_folders(self._folder):
            if name != ENTRIES and (version := _newest_before(self._log(name), until_ms)) is not None:
                versions[name] = version
        return TablesCut(versions, _last_row(entries, history.start, position) <= index)

    def _log(self, name: str) -> DeltaLog:
        if name not in self._logs:
            self._logs[name] = DeltaLog(f"{self._folder}/{name}")
        return self._logs[name]

    def _state(self, name: str) -> TableState | None:
        log = self._log(name)
        snapshot = log.snapshot()
        if snapshot is None:
            return None
        entries = snapshot if name == ENTRIES else self._log(ENTRIES).snapshot()
        properties: Mapping[str, str] = {} if entries is None else entries.properties
        log_id = properties.get(LOG_ID_PROPERTY)
        begin_index = int(properties.get(BEGIN_PROPERTY, 0))
        return TableState(
            name,
            log.path,
            snapshot.version,
            self._held_index(name, log, snapshot),
            log_id,
            largest(snapshot, EPOCH) if name in EPOCH_TABLES else None,
            self._committed_ms(name, snapshot.version),
            begin_index=begin_index,
        )

    def _held_index(self, name: str, log: DeltaLog, snapshot: DeltaSnapshot) -> int | None:
        if name == ENTRIES:
            if self._held[0] != snapshot.version:
                self._held = (snapshot.version, _end(log, snapshot))
            return self._held[1]
        if is_typed(name):
            return self._typed_index(name, snapshot)
        return self._covered_index() if name in JOURNAL_TABLES else None

    def _committed_ms(self, name: str, version: int) -> int | None:
        if self._committed.get(name, (NONE, None))[0] != version:
            commit = self._log(name).commit(version)
            self._committed[name] = (version, None if commit is None else commit.timestamp_ms)
        return self._committed[name][1]

    def _typed_index(self, name: str, snapshot: DeltaSnapshot) -> int:
        """Return the index up to which typed tables hold every record, NONE for none.

        The last commit of a range in `records` or `dead_letters` records its end, and where no row follows,
        a transaction version of `records`; that of `current` is the transaction version of its last range.
        """
        if is_typed(name, CURRENT):
            return snapshot.transactions.get(application_of(name), 0) - 1
        found = [each for each in table_folders(self._folder) if is_typed(each, RECORDS, DEAD_LETTERS)]
        return max((self._noted(each) for each in found), default=NONE)

    def _noted(self, name: str) -> int:
        log = self._log(name)
        snapshot = log.snapshot()
        if snapshot is None:
            return NONE
        known = self._ends.get(name)
        if known is None or known.version != snapshot.version:
            claimed = snapshot.transactions.get(end_application_of(name), 0) - 1
            held = max(claimed, _held_since(log, known, snapshot.version))
            self._ends[name] = known = _KnownEnd(snapshot.version, log.commit(snapshot.version), held)
        return known.held_index

    def _covered_index(self) -> int | None:
        """Return the newest committed index that the rows of `events` report; None if it is not recorded."""
        log = self._log(JOURNALS)
        snapshot = log.snapshot()
        if snapshot is not None and self._covered[0] != snapshot.version:
            before, covered = self._covered, _covered(log, snapshot.version)
            if covered is not None and before[1] is not None and before[0] < snapshot.version:
                covered = max(covered, before[1])  # the journal of a node that was down reports older ones
            self._covered = (snapshot.version, covered)
        return None if snapshot is None else self._covered[1]


def is_typed(name: str, *kinds: str) -> bool:
    """Return whether a table is one of the typed tables, or of these kinds of them: `records_v3` is one of
    the kind `records`."""
    kind, _, number = name.partition("_v")
    return kind in (kinds or (RECORDS, DEAD_LETTERS, CURRENT)) and (kind == name or number.isdecimal())


def largest(snapshot: DeltaSnapshot, column: str) -> int:
    """Return the largest number in a column of a version, NONE for none."""
    return max((int(file.most.get(column, NONE)) for file in snapshot.files.values()), default=NONE)


def _first(versions: range, holds: Callable[[int], bool]) -> int:
    """Return the first version for which `holds` is true, by bisection; the end of the range for none."""
    low, high = versions.start, versions.stop
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _bringing(log: DeltaLog, first: int, version: int) -> Commit | None:
    """Return the last commit of [first, version] that added rows; None if there is none in the history, or
    if RESTORE removed rows since: then the remaining rows decide."""
    for earlier in range(version, first - 1, -1):
        commit = log.commit(earlier)
        if commit is None or "until_index" in commit.note:
            return commit
        if commit.operation == RESTORE:
            return None
    return None


def _held(log: DeltaLog, first: int, version: int) -> int:
    commit = _bringing(log, first, version)
    return NONE if commit is None else int(commit.note["until_index"]) - 1


def _held_since(log: DeltaLog, known: _KnownEnd | None, version: int) -> int:
    """As `_held` of the whole history. Only the commits after a known one are read: most commits of
    `dead_letters` record nothing."""
    is_same = known is not None and known.commit is not None and log.commit(known.version) == known.commit
    if known is None or not is_same or known.version > version:
        return _held(log, 0, version)
    for later in range(known.version + 1, version + 1):
        commit = log.commit(later)
        if commit is None or commit.operation == RESTORE or "until_index" in commit.note:
            return _held(log, known.version + 1, version)
    return known.held_index


def _end(log: DeltaLog, snapshot: DeltaSnapshot) -> int:
    """Return the index up to which the newest version of `entries` holds every record. The last commit that
    added rows records it; if its last row was removed since, the remaining rows decide."""
    last = largest(snapshot, KEY)
    commit = _bringing(log, 0, snapshot.version)
    if commit is None or last < max(commit.largest(KEY), default=NONE):
        return last
    return max(last, int(commit.note["until_index"]) - 1)


def _covered(log: DeltaLog, version: int) -> int | None:
    """Return the note of the last commit with one; None if there is none, or if rows were removed since."""
    for earlier in range(version, NONE, -1):
        commit = log.commit(earlier)
        if commit is None or commit.operation == RESTORE or commit.removes_rows:
            return None
        if COVERED_INDEX in commit.note:
            return int(commit.note[COVERED_INDEX])
    return None


def _last_row(log: DeltaLog, first: int, version: int) -> int:
    commit = _bringing(log, first, version)
    return NONE if commit is None else max((int(index) for index in commit.largest(KEY)), default=NONE)


def _followed_at(log: DeltaLog, versions: range) -> int | None:
    """Return the time of the first of the versions that added rows; None if none did."""
    for version in versions:
        commit = log.commit(version)
        if commit is not None and "until_index" in commit.note:
            return commit.timestamp_ms
    return None


def _newest_before(log: DeltaLog, timestamp_ms: int | None) -> int | None:
    """Return the newest version that was committed before that time, None for any time."""

    def later(version: int) -> bool:
        commit = log.commit(version)
        return timestamp_ms is not None and commit is not None and commit.timestamp_ms >= timestamp_ms

    history = log.versions()
    after = _first(history, later)
    return after - 1 if after > history.start else None
