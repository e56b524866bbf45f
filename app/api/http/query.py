"""Query parameters that all routes share."""

import re
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

from app.errors import InvalidRequest

PARAMETERS_MAX: Final = 100  # each unknown one costs a validation and an error in the answer
_WHOLE: Final = re.compile(r"-?[0-9]+")


def _whole(value: Any) -> Any:
    """Refuse the other spellings of a number that pydantic accepts, such as `+1`, `1.0` and `1_000`."""
    if isinstance(value, str) and not _WHOLE.fullmatch(value):
        raise PydanticCustomError("whole_number", "must be a whole number")
    return value


WHOLE: Final = BeforeValidator(_whole)  # after bounds: pydantic then documents them as minimum and maximum
WholeNumber = Annotated[int, WHOLE]


class Query(BaseModel):
    """Unknown parameters are refused."""

    model_config = ConfigDict(extra="forbid", populate_by_name=False)


class NoQuery(Query):
    """No parameters at all."""


def has_too_many(query: bytes) -> bool:
    """Return whether a raw query has more than PARAMETERS_MAX parameters."""
    return query.count(b"&") >= PARAMETERS_MAX


def check_count(query: bytes) -> None:
    """Raise InvalidRequest for a raw query with more than PARAMETERS_MAX parameters."""
    if has_too_many(query):
        count = query.count(b"&") + 1
        raise InvalidRequest(("/query", f"must have at most {PARAMETERS_MAX} parameters, got {count}"))
