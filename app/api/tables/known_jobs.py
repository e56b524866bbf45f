"""The last reports of the Spark jobs that write the tables."""

import asyncio
from collections.abc import Mapping
from typing import Final

from fastapi import Request

from app.node.job_threads import in_thread
from app.tables.job_reports import JobReport, JobReports

_JOBS_WAIT_S: Final = 0.5


class KnownJobs:
    """The last reports of the jobs that write the tables, by log.

    One read at a time, in a thread. A file system that does not answer holds no more threads, delays no call
    by more than _JOBS_WAIT_S (the answer is then what was read before), and no stop of the node.
    """

    def __init__(self, root: str | None) -> None:
        self._reports = None if root is None else JobReports(root)
        self._reading: asyncio.Task[Mapping[str, JobReport]] | None = None
        self._began_s = 0.0
        self._last: Mapping[str, JobReport] = {}

    async def last(self) -> Mapping[str, JobReport]:
        """Return the last report about each log that has one, none when [tables] path is not set."""
        if self._reports is None:
            return {}
        loop = asyncio.get_running_loop()
        reading = self._reading
        if reading is None or reading.done():
            reading = self._reading = loop.create_task(in_thread(self._reports.read))
            self._began_s = loop.time()
        await asyncio.wait((reading,), timeout=max(0.0, self._began_s + _JOBS_WAIT_S - loop.time()))
        if reading.done():
            self._last = reading.result()
        return self._last


def known_jobs(request: Request) -> KnownJobs:
    known: KnownJobs = request.app.state.jobs
    return known


def job_of(log: str, jobs: Mapping[str, JobReport]) -> dict[str, str]:
    """Return the state that the Spark job of a log has reported, as a field of the log; none without a
    report."""
    return {"tables_job": jobs[log].state} if log in jobs else {}
