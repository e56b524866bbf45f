"""Numbers of tables, and the state of the job that writes them, for people."""

import time
from typing import TYPE_CHECKING

from app.cli.context import printable
from app.cli.times import format_time
from app.client.tables import TablesJob
from app.tables.names import FAILED, is_silent

if TYPE_CHECKING:
    from app.tables.job_reports import JobReport  # slow to import


def count_cell(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def job_line(log: str, job: "TablesJob | JobReport") -> str:
    """Return the last report of the job of a log for people."""
    reported, now_ms = f"reported {format_time(job.updated_ms)}", _now_ms()
    if is_silent(job.state, job.updated_ms, now_ms):
        age_s = (now_ms - job.updated_ms) // 1_000
        return (
            f"The Spark job of {log} has not reported for {age_s:,} s, since {format_time(job.updated_ms)}, "
            "when it was running: check that its process runs, and that the disk of the tables has space"
        )
    if job.state != FAILED:
        return f"Spark job of {log}: {printable(job.state)}, {reported}"
    when = f"({reported})" if job.failed_ms is None else f"since {format_time(job.failed_ms)}"
    reason = "the lines that it printed have the reason" if job.error is None else printable(job.error)
    return f"The Spark job of {log} has failed {when}: {reason}"


def needs_attention(job: "TablesJob | JobReport") -> bool:
    """Return whether the job has failed, or has not reported for longer than a job that runs."""
    return job.state == FAILED or is_silent(job.state, job.updated_ms, _now_ms())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
