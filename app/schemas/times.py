"""The calendar of tables: days of the years 1 to 9999, as Spark and the readers of Delta have them."""

from datetime import date
from typing import Final

from app.schemas.errors import ValueInvalid

DAY_MICROS: Final = 86_400_000_000
_EPOCH: Final = date(1970, 1, 1).toordinal()
FIRST_DAY: Final = date(1, 1, 1).toordinal() - _EPOCH
LAST_DAY: Final = date(9999, 12, 31).toordinal() - _EPOCH


def check_days(value: int) -> int:
    """Return a number of days since 1970-01-01. Raises ValueInvalid outside the calendar."""
    if not FIRST_DAY <= value <= LAST_DAY:
        raise ValueInvalid(f"{value} days since 1970-01-01 are outside the years 1 to 9999.")
    return value


def check_micros(value: int) -> int:
    """Return a number of microseconds since 1970-01-01. Raises ValueInvalid outside the calendar."""
    if not FIRST_DAY * DAY_MICROS <= value < (LAST_DAY + 1) * DAY_MICROS:
        raise ValueInvalid(f"{value} microseconds since 1970-01-01 are outside the years 1 to 9999.")
    return value
