"""The errors of Spark and Delta, and the repetition of a change when another writer was first."""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

# Py4JError: a Java class without an equivalent in PySpark, such as Delta's error of conflicting commits.
SPARK_ERRORS = (PySparkException, Py4JJavaError)
CONCURRENT_CLAIM: Final = "DELTA_CONCURRENT_TRANSACTION"  # the other commit has a claim of this application
PROTOCOL_CHANGED: Final = "DELTA_PROTOCOL_CHANGED"  # also: of two that create a table, one has
CONFLICTS: Final = ("DELTA_CONCURRENT", "DELTA_METADATA_CHANGED", PROTOCOL_CHANGED)
"""Beginnings of the codes of all conflicts with another commit; the second is of one that has changed columns
or properties."""

Result = TypeVar("Result")


def is_conflict(error: BaseException) -> bool:
    """Return whether another commit was first: the same change may be made again."""
    return any(code in str(error) for code in CONFLICTS)


def repeated(change: Callable[[], Result], causes: Sequence[str], attempts: int) -> Result:
    """Run `change`, and again after an error that contains one of `causes`, at most `attempts` times; return
    its result.

    Raises the error of the last attempt, and every other error.
    """
    attempt = 1
    while True:
        try:
            return change()
        except SPARK_ERRORS as error:
            if attempt == attempts or not any(cause in str(error) for cause in causes):
                raise
            attempt += 1
