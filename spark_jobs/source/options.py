"""Options of `format("commitlog")`, validated before any read (docs/api.md §6)."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from app.client.connection import is_base_url, shown
from app.durations import parse_duration
from app.names import check_token
from spark_jobs.errors import OptionError
from spark_jobs.source.log_names import check_name, selected, split_names
from spark_jobs.source.planning import EARLIEST, LATEST

RECORDS, EVENTS = "records", "events"
NAMES = (
    "endpoint",
    "token",
    "log",
    "logs",
    "startingIndex",
    "endingIndex",
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "minRecordsPerTrigger",
    "maxTriggerDelay",
    "backlogRecords",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "stream",
    "includeControl",
    "dataFolder",
    "tail",
    "table",
)
BETWEEN, JOINS_AGAIN = "between", "joinsAgain"  # for the job alone
_OPTION_PREFIX = "option."  # of the options among the properties that Spark passes for a new table
_NO_TABLE = (
    "the session catalog of Spark does not pass the options of a table to a data source in Python: use "
    "CREATE TEMPORARY VIEW ... USING commitlog OPTIONS (...), or set spark.sql.catalog.spark_catalog to "
    "commitlog.SessionCatalog"
)
NOT_FOR_EVENTS = {  # by option: its field, whose default changes nothing
    "endingIndex": "ending_index",
    "maxBytesPerTrigger": "max_bytes_per_trigger",
    "minRecordsPerTrigger": "min_records_per_trigger",
    "maxTriggerDelay": "max_trigger_delay_s",
    "minPartitions": "min_partitions",
    "maxRecordsPerPartition": "max_records_per_partition",
    "includeControl": "include_control",
    "dataFolder": "data_folders",
    "tail": "union",
    "table": "table",
    "logs": "logs",
    "backlogRecords": "backlog_records",
}
UNION = "union"
StartingIndex = int | str | dict[str, int]


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Validated options of a query.

    endpoints: base URLs of replicas, none with a slash at its end. starting_index: inclusive, EARLIEST,
    LATEST, None where the kind of query decides; for events a seq, or one by node; with `logs` one by
    log. ending_index: inclusive, or LATEST. min_records_per_trigger: a stream with fewer new records may
    wait for more, max_trigger_delay_s at most (planning.SmallBatchPace). data_folders: of nodes on this
    machine, whose files are read in place. union: read the Delta table, and newer records from the log;
    table: its location, None to get it from the service. between: of the job that writes the tables: the
    offsets of a micro-batch of a stream that the job itself has planned, as JSON; a batch query reads it
    with the checks of a stream. logs: names and patterns of the logs of one stream, empty for the one
    `log`. backlog_records: a log with more new records gets micro-batches of its own. joins_again: of the
    job: a log in which the position of a stream is no longer right joins again at its end.
    """

    endpoints: tuple[str, ...]
    token: str | None = None
    log: str = "default"
    starting_index: StartingIndex | None = None
    ending_index: int | str = LATEST
    max_records_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_records_per_trigger: int = 1
    max_trigger_delay_s: float = 10.0
    min_partitions: int = 1
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    stream: str = RECORDS
    include_control: bool = False
    data_folders: tuple[str, ...] = ()
    union: bool = False
    table: str | None = None
    between: str | None = None
    logs: tuple[str, ...] = ()
    backlog_records: int | None = None
    joins_again: bool = False

    def until(self, next_index: int) -> int:
        """Return the exclusive end of a batch query of a log that ends before `next_index`.

        Raises OptionError.
        """
        if not isinstance(self.ending_index, int):
            return next_index
        if self.ending_index >= next_index:
            raise OptionError(
                f"endingIndex must be at most the last index, {next_index - 1}, got {self.ending_index}"
            )
        return self.ending_index + 1

    def for_batch(self) -> "SourceOptions":
        """Return the options for a batch query, with its default start.

        Raises OptionError for options that only streams have.
        """
        if self.max_records_per_trigger is not None or self.max_bytes_per_trigger is not None:
            raise OptionError(
                "maxRecordsPerTrigger and maxBytesPerTrigger are for streams: a batch reads its range"
            )
        if self.min_records_per_trigger > 1:
            raise OptionError("minRecordsPerTrigger is for streams: a batch reads its range")
        if self.logs:
            raise OptionError("logs is for streams: a batch reads one log, named by the option log")
        return replace(self, starting_index=EARLIEST if self.starting_index is None else self.starting_index)

    def for_stream(self) -> "SourceOptions":
        """Return the options for a streaming query, with its default start.

        Raises OptionError for options that only batches have.
        """
        if self.ending_index != LATEST:
            raise OptionError("endingIndex is for batch queries: a stream has no end")
        if self.union:
            raise OptionError("tail=union is for batch queries: start a stream where the table ends")
        return replace(self, starting_index=LATEST if self.starting_index is None else self.starting_index)


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Read Spark's options, whose names ignore case.

    Raises OptionError with the details of the error.
    """
    values = _by_name(given)
    stream = values.get("stream", RECORDS)
    if stream not in (RECORDS, EVENTS):
        raise OptionError(f"stream: {stream!r} is neither {RECORDS!r} nor {EVENTS!r}")
    logs = split_names([values.get("logs", "")])
    if "logs" in values and (not logs or "log" in values):
        raise OptionError("logs: give names or patterns, separated by commas, and leave out the option log")
    if "backlogRecords" in values and not logs:
        raise OptionError("backlogRecords requires the option logs")
    if "maxTriggerDelay" in values and "minRecordsPerTrigger" not in values:
        raise OptionError("maxTriggerDelay requires minRecordsPerTrigger: only smaller micro-batches wait")
    log = values.get("log", "default")
    check_name(log)
    options = SourceOptions(
        endpoints=parse_endpoints(values.get("endpoint", "")),
        token=parse_token(values.get("token", "")),
        log=log,
        starting_index=_start(values.get("startingIndex"), stream, by="log" if logs else None),
        ending_index=_end(values.get("endingIndex", LATEST)),
        max_records_per_trigger=_positive(values, "maxRecordsPerTrigger"),
        max_bytes_per_trigger=_positive(values, "maxBytesPerTrigger"),
        min_records_per_trigger=_positive(values, "minRecordsPerTrigger") or 1,
        max_trigger_delay_s=parse_seconds("maxTriggerDelay", values.get("maxTriggerDelay", "10s")),
        min_partitions=_positive(values, "minPartitions") or 1,
        max_records_per_partition=_positive(values, "maxRecordsPerPartition"),
        fail_on_data_loss=_flag(values, "failOnDataLoss", default=True),
        stream=stream,
        include_control=_flag(values, "includeControl", default=False),
        data_folders=tuple(part.strip() for part in values.get("dataFolder", "").split(",") if part.strip()),
        union=_union(values),
        table=values.get("table"),
        between=values.get(BETWEEN),
        logs=logs,
        backlog_records=_positive(values, "backlogRecords"),
        joins_again=_flag(values, JOINS_AGAIN, default=False),
    )
    if logs and isinstance(options.starting_index, dict):
        _check_selected(options.starting_index, logs)
    if stream == EVENTS:
        _check_for_events(options)
    return options


def _by_name(given: Mapping[str, str]) -> dict[str, str]:
    """Return the values by the option's name in this module. Raises OptionError for unknown ones."""
    known = {name.lower(): name for name in (*NAMES, BETWEEN, JOINS_AGAIN)}
    if any(name.lower().startswith(_OPTION_PREFIX) for name in given):
        raise OptionError(_NO_TABLE)
    for name in given:
        if name.lower() not in known:
            raise OptionError(f"unknown option {name!r}; the options are {', '.join(NAMES)}")
    return {known[name.lower()]: value for name, value in given.items()}


def _check_for_events(options: SourceOptions) -> None:
    defaults = SourceOptions(endpoints=options.endpoints)
    for name, field in NOT_FOR_EVENTS.items():
        if getattr(options, field) != getattr(defaults, field):
            raise OptionError(f"{name} does not apply to stream=events: each node's journal is one partition")


def _check_selected(positions: Mapping[str, int], logs: Sequence[str]) -> None:
    """Raise OptionError for a position of a log that the stream does not read: the log that was meant would
    begin elsewhere."""
    if strays := sorted(positions.keys() - set(selected(logs, positions))):
        raise OptionError(f"startingIndex: the option logs does not select {', '.join(strays)}")


def parse_token(text: str) -> str | None:
    """Return the token, None for an empty one. Raises OptionError; the message does not contain the token."""
    try:
        check_token(text)
    except ValueError as error:
        raise OptionError(str(error)) from None
    return text or None


def _union(values: Mapping[str, str]) -> bool:
    if values.get("tail", UNION) != UNION:
        raise OptionError(f"tail must be {UNION!r}, got {values['tail']!r}")
    if "table" in values and "tail" not in values:
        raise OptionError("table requires tail=union; to read only a table, use the format delta")
    if "tail" in values and values.get("includeControl", "false").lower() == "true":
        raise OptionError(
            "includeControl cannot be used with tail=union: the table contains data records only"
        )
    return "tail" in values


def parse_endpoints(text: str) -> tuple[str, ...]:
    """Return base URLs without a slash at their ends. Raises OptionError."""
    endpoints = tuple(part.strip().rstrip("/") for part in text.split(",") if part.strip())
    if not endpoints:
        raise OptionError("endpoint: give the base URL of one replica or more, separated by commas")
    for endpoint in endpoints:
        if not is_base_url(endpoint):
            raise OptionError(f"endpoint: {shown(endpoint)} is not a URL such as http://host:8101")
    return endpoints


def _start(text: str | None, stream: str, by: str | None) -> StartingIndex | None:
    """by: what a position of a stream is of, None where it has one."""
    if text is None or text in (EARLIEST, LATEST):
        return text
    by = "node" if stream == EVENTS else by
    if by is None or (by == "node" and text.isdecimal()):
        return _index("startingIndex", text)
    try:
        positions: Any = json.loads(text)
    except ValueError:
        positions = None
    if not isinstance(positions, dict) or not all(
        isinstance(seq, int) and not isinstance(seq, bool) and seq >= 0 for seq in positions.values()
    ):
        words = (
            'a seq nor one by node, as in {"n1": 17}'
            if by == "node"
            else 'nor indexes by log, as in {"orders": 17}'
        )
        raise OptionError(f"startingIndex: {text!r} is neither {EARLIEST!r}, {LATEST!r}, {words}")
    return dict(positions)


def _end(text: str) -> int | str:
    return text if text == LATEST else _index("endingIndex", text)


def _index(name: str, text: str) -> int:
    if not text.isdecimal():
        words = f"{LATEST!r}" if name == "endingIndex" else f"{EARLIEST!r}, {LATEST!r}"
        raise OptionError(f"{name}: {text!r} is neither {words} nor an index")
    return int(text)


def _positive(values: Mapping[str, str], name: str) -> int | None:
    if name not in values:
        return None
    text = values[name]
    if not text.isdecimal() or int(text) == 0:
        raise OptionError(f"{name} must be a whole number above 0, got {text!r}")
    return int(text)


def parse_seconds(name: str, text: str) -> float:
    """Return a time above 0 such as `10s`, `500ms` or `2m` in seconds. Raises OptionError."""
    with suppress(ValueError):
        if (seconds := parse_duration(text)) > 0:
            return seconds
    raise OptionError(f"{name} must be a time such as 10s, 500ms or 2m, got {text!r}")


def _flag(values: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = values.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise OptionError(f"{name}: {values[name]!r} is neither true nor false")
    return text == "true"
