"""Query parameters that all routes share."""

import re
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

_WHOLE: Final = re.compile(r"-?[0-9]+")


def _whole(value: Any) -> Any:
    """Refuse the other spellings of a number that pydantic accepts, such as `+1`, `1.0` and `1_000`."""
    if isinstance(value, str) and not _WHOLE.fullmatch(value):
        raise PydanticCustomError("whole_number", "Input should be a whole number")
    return value


WholeNumber = Annotated[int, BeforeValidator(_whole)]


class Query(BaseModel):
    """Unknown parameters are refused."""

    model_config = ConfigDict(extra="forbid", populate_by_name=False)


class NoQuery(Query):
    """No parameters at all."""
