"""Entry points of the wheel for Databricks (databricks.yml names them).

A wheel task counts every return as a success, so a job that ends with a code other than 0 raises.
"""

from collections.abc import Callable

from spark_jobs import run
from spark_jobs import upkeep as upkeep_job
from spark_jobs import verify as verify_job


class JobFailed(RuntimeError):
    """A job has reported its error on standard error, and ended with this code."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name} ended with exit code {code}; the lines above report the reason")


def materialize() -> None:
    """Run `python -m spark_jobs.run`. Raises JobFailed."""
    _call("materialize", run.main)


def upkeep() -> None:
    """Run `python -m spark_jobs.upkeep`. Raises JobFailed."""
    _call("upkeep", upkeep_job.main)


def verify() -> None:
    """Run `python -m spark_jobs.verify`. Raises JobFailed."""
    _call("verify", verify_job.main)


def _call(name: str, main: Callable[[], int]) -> None:
    if (code := main()) != 0:
        raise JobFailed(name, code)
