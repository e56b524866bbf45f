"""Problem documents of failures that no node has reported: of the command line and of Spark jobs."""

from typing import Any


def local_problem(code: str, detail: str, *, outcome: str = "not_applied", retryable: bool = False) -> Any:
    """Return the problem document of a failure for which no node has sent one. It has no `status`."""
    return {
        "type": "about:blank",
        "title": code.replace("-", " ").capitalize(),
        "detail": detail,
        "code": code,
        "retryable": retryable,
        "outcome": outcome,
    }
