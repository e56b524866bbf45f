"""Query parameters that all routes share."""

import re
from typing import Annotated, Any, Final
from urllib.parse import unquote_plus, unquote_to_bytes

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


def query_refusal(query: bytes) -> InvalidRequest | None:
    """Return the refusal of a raw query: more than PARAMETERS_MAX parameters, or one that is not UTF-8.

    Decoders replace bytes that are not UTF-8, so that two producers or keys would be taken for one.
    """
    count = query.count(b"&") + 1
    if count > PARAMETERS_MAX:
        return InvalidRequest(("/query", f"must have at most {PARAMETERS_MAX} parameters, got {count}"))
    if b"%" not in query:
        return None
    errors = []
    for parameter in query.split(b"&"):
        try:
            unquote_to_bytes(parameter).decode("utf-8")
        except UnicodeDecodeError:
            name = unquote_plus(parameter.partition(b"=")[0].decode("latin-1"))
            errors.append((f"/query/{name}", f"must be UTF-8, got {parameter[:40].decode('latin-1')!r}"))
    return InvalidRequest(*errors) if errors else None
