"""Futures that callbacks settle. The caller may have been cancelled meanwhile: then the result is dropped."""

import asyncio
from collections.abc import Callable
from typing import TypeVar, cast

from app.errors import CommitlogError

Result = TypeVar("Result")


def settle(future: "asyncio.Future[Result]", result: Result, error: BaseException | None = None) -> None:
    """Settle `future` by the error, or without one by the result, unless it is done already."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def settling(future: "asyncio.Future[Result]") -> Callable[[Result | CommitlogError], None]:
    """Return the callback that settles `future` by a result or a refusal, unless it is done already."""

    def done(result: Result | CommitlogError) -> None:
        error = result if isinstance(result, CommitlogError) else None
        settle(future, cast("Result", result), error)

    return done
