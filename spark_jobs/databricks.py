"""What Databricks calls of the wheel: databricks.yml names these entry points.

A wheel task takes a return for success, whatever it says: so a job that ends with another code than 0 raises.
"""

from collections.abc import Callable

from spark_jobs import run
from spark_jobs import upkeep as upkeep_job
from spark_jobs import verify as verify_job


class JobFailed(RuntimeError):
    """A job has told on standard error what is wrong, and ended with this code."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name} ended with exit code {code}; the lines above report the reason")


def materialize() -> None:
    """`python -m spark_jobs.run`. Raises JobFailed."""
    _call("materialize", run.main)


def upkeep() -> None:
    """`python -m spark_jobs.upkeep`. Raises JobFailed."""
    _call("upkeep", upkeep_job.main)


def verify() -> None:
    """`python -m spark_jobs.verify`. Raises JobFailed."""
    _call("verify", verify_job.main)


def _call(name: str, main: Callable[[], int]) -> None:
    if (code := main()) != 0:
        raise JobFailed(name, code)
