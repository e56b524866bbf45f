"""Progress of a materializer: a JSON file for programs, a line for people."""

import json
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from spark_jobs.job_lines import warn

WRITE_EACH_S = 0.5
REPORT_EACH_S = 2.0  # in the first minute
REPORT_LATER_EACH_S = 30.0
NAMED_MAX = 8  # logs that a line names
_FIRST_S = 60.0


@dataclass(frozen=True)
class LogProgress:
    """Progress of one log's tables. Indexes are inclusive, -1 for none.

    materialized_index: every data record up to it is in `entries`. committed_index: of the log, None when no
    replica answered. restarts: of queries, after failures. last_batch: the newest micro-batch of `entries`:
    its id, the number of records read, and the milliseconds by part; None before the first. typed: of the
    typed tables, as of `TypedTables.progress`; None without a schema. error: why the jobs of the log have
    ended, and failed_ms: since when; None while they run.
    """

    entries_rows: int
    materialized_index: int
    committed_index: int | None
    events_rows: int
    watermarks_rows: int
    epochs_rows: int
    restarts: int
    last_batch: Mapping[str, Any] | None = None
    typed: Mapping[str, Any] | None = None
    error: str | None = None
    failed_ms: int | None = None

    @property
    def lag_records(self) -> int | None:
        """Committed records that the table may lack; None when unknown."""
        if self.committed_index is None:
            return None
        return max(0, self.committed_index - self.materialized_index)

    @property
    def urgency(self) -> tuple[bool, float]:
        """Place in the order in which a line names logs: failed ones, then those with the largest lag."""
        return self.error is None, -math.inf if self.lag_records is None else -self.lag_records

    def __str__(self) -> str:
        if self.error is not None:
            return (
                f"failed with {self.entries_rows:,} entries through index {self.materialized_index:,}: "
                f"{self.error}"
            )
        lag = "unknown" if self.lag_records is None else f"{self.lag_records:,}"
        parts = [f"{self.entries_rows:,} entries through index {self.materialized_index:,}", f"lag {lag}"]
        parts += [f"{self.events_rows:,} events", f"{self.epochs_rows} epochs"]
        if self.typed is not None:
            parts.append(f"typed through {self.typed['typed_index']:,} of {self.typed['target_index']:,}")
        return ", ".join(parts)


def batch_after(last: Mapping[str, Any] | None, records: int, times_s: Sequence[float]) -> dict[str, Any]:
    """Return the document of a micro-batch after `last`. times_s: when it began, was planned, was read and
    has ended, monotonic."""
    began_s, planned_s, read_s, ended_s = times_s
    parts = {
        "latestOffset": planned_s - began_s,
        "getBatch": read_s - planned_s,
        "addBatch": ended_s - read_s,
        "triggerExecution": ended_s - began_s,
    }
    duration_ms = {name: max(1, round(1_000 * seconds)) for name, seconds in parts.items()}
    return {"id": 0 if last is None else last["id"] + 1, "records": records, "duration_ms": duration_ms}


@dataclass(frozen=True)
class Progress:
    """Progress of all logs of one materializer.

    state: running, done, stopped, failed. records_per_s: in the last REPORT_EACH_S in which rows were added;
    in a report while the job runs, since the report before. unchanged: number of
    further logs that are as in the last report, and left out. error: why the job has failed, unless that is
    the error of a log.
    """

    state: str
    updated_ms: int
    logs: Mapping[str, LogProgress]
    records_per_s: float
    unchanged: int = 0
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        logs = {name: {**asdict(log), "lag_records": log.lag_records} for name, log in self.logs.items()}
        return {
            "state": self.state,
            "updated_ms": self.updated_ms,
            "error": self.error,
            "records_per_s": round(self.records_per_s, 1),
            "logs": logs,
        }

    def __str__(self) -> str:
        named = sorted(self.logs, key=lambda name: self.logs[name].urgency)[:NAMED_MAX]
        parts = [f"{name}: {log}" for name, log in self.logs.items() if name in named]
        if others := [log for name, log in self.logs.items() if name not in named]:
            parts.append(f"{len(others):,} more logs: {sum(log.entries_rows for log in others):,} entries")
        if self.unchanged:
            parts.append(f"{self.unchanged:,} other logs as before")
        return f"{self.state}: {'; '.join(parts) or 'no logs yet'}; {self.records_per_s:,.0f} records/s"

    def since(self, last: Mapping[str, LogProgress]) -> "Progress":
        """Return the progress of the logs that have changed since the last report, of all if none has."""
        changed = {name: log for name, log in self.logs.items() if last.get(name) != log} or self.logs
        return replace(self, logs=changed, unchanged=len(self.logs) - len(changed))


class ProgressFile:
    """Writer of the progress to `path`: atomically, at most each WRITE_EACH_S. `report` is called at
    the end and when rows were added, at most each REPORT_EACH_S, later each REPORT_LATER_EACH_S."""

    def __init__(self, path: Path, report: Callable[[Progress], None] | None = None) -> None:
        self.path = path
        self._temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.new")  # of this job alone
        self.report = report
        self.written_at_s = 0.0
        self.is_failing = False
        self.started_at_s = self.reported_at_s = time.monotonic()
        self.reported_rows: int | None = None
        self._measured: tuple[float, int] | None = None  # time and rows
        self.rate = 0.0

    def write(
        self, state: str, logs: Mapping[str, LogProgress], *, force: bool = False, error: str | None = None
    ) -> Progress:
        """Return the progress, written if `force` or if the last write is old enough."""
        now_s = time.monotonic()
        rows = sum(log.entries_rows for log in logs.values())
        self._measure(now_s, rows)
        progress = Progress(state, time.time_ns() // 1_000_000, logs, self.rate, error=error)
        if force or now_s - self.written_at_s >= WRITE_EACH_S:
            self.written_at_s = now_s
            self._replace(json.dumps(progress.to_json()) + "\n")
        elapsed_s = now_s - self.reported_at_s
        each_s = REPORT_EACH_S if now_s - self.started_at_s < _FIRST_S else REPORT_LATER_EACH_S
        if self.reported_rows is None or (elapsed_s >= each_s and rows != self.reported_rows):
            rate = 0.0 if self.reported_rows is None else max(0, rows - self.reported_rows) / elapsed_s
            self.reported_rows, self.reported_at_s = rows, now_s
            if self.report is not None and not force:
                self.report(replace(progress, records_per_s=rate))
        if force and self.report is not None:
            self.report(progress)
        return progress

    def _measure(self, now_s: float, rows: int) -> None:
        if self._measured is None:
            self._measured = (now_s, rows)
        at_s, before = self._measured
        if now_s - at_s >= REPORT_EACH_S and rows != before:
            self.rate, self._measured = max(0, rows - before) / (now_s - at_s), (now_s, rows)

    def _replace(self, text: str) -> None:
        """Replace the content of the file. An error is reported once: it stops no table."""
        try:
            self._temporary.write_text(text, "utf-8")
            self._temporary.replace(self.path)
            self.is_failing = False
        except OSError as error:
            if not self.is_failing:
                warn(f"progress: {error}; the tables are written without it")
            self.is_failing = True
