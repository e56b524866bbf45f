"""Strict reading of one JSON text (RFC 8259): the same documents are refused on every machine. Fast counts of
the signs in a text, for readers that check no more."""

import json
import math
import re
import sys
from decimal import Decimal
from itertools import islice
from types import ModuleType
from typing import Any, Final, NoReturn

from app.schemas.errors import ValueInvalid

try:
    import numpy
except ImportError:  # the client's installation; it checks few records
    numpy: ModuleType | None = None  # type: ignore[no-redef]

NESTING_MAX: Final = 64
"""Levels of arrays and objects in a record."""
DIGITS_MAX: Final = 1_000
"""Digits, and the exponent, of a number that is kept exactly; a longer one is a double."""
_QUOTE_COLON: Final = 0x3A22  # `":` as a little-endian number of 2 bytes
_SPACE_COLONS: Final = (0x3A20, 0x3A09, 0x3A0A, 0x3A0D)
_SPACES: Final = (b" ", b"\t", b"\n", b"\r")
_VECTOR_BYTES: Final = 1_024
"""Bytes from which on numpy counts faster than Python."""
_FIRST_TOKENS: Final = 1_000
_LEVELS: Final = {"[": 1, "{": 1, "]": -1, "}": -1}
_TOKENS: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)
_NO_BRACKETS: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[^"\[\]{}]+', re.DOTALL)
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_DOUBLE_MAX: Final = int(sys.float_info.max)
_WHOLE_DIGITS_MAX: Final = 310  # with a sign: more are beyond a double


def read_json(value: bytes, subject: str = "record") -> Any:
    """Return the document: dict, list, str, bool, None, int, Decimal for numbers with fraction or exponent,
    float for those that have more than DIGITS_MAX digits. subject: word for the text in refusals.

    Raises ValueInvalid for bytes that are not UTF-8, malformed JSON, a name that occurs twice in an object,
    NaN and infinities, a number beyond a double, a surrogate without its pair, and more than NESTING_MAX
    levels.
    """
    try:
        text = str(value, "utf-8")
    except UnicodeDecodeError as error:
        raise ValueInvalid(f"The {subject} is not valid UTF-8 at byte {error.start}.") from None
    if text.count("[") + text.count("{") > NESTING_MAX and _is_deep(text):
        raise ValueInvalid(f"The {subject} is nested deeper than {NESTING_MAX} levels.")
    try:
        document = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise ValueInvalid(
            f"The {subject} is not valid JSON at character {error.pos}: {error.msg}."
        ) from None
    if _SURROGATE.search(text):
        _check_surrogates(document)
    return document


def _is_deep(text: str) -> bool:
    """Return true if arrays and objects are nested deeper than NESTING_MAX."""
    depth = end = 0
    for token in islice(_TOKENS.finditer(text), _FIRST_TOKENS):  # a text that begins deep ends here
        depth += _LEVELS.get(token[0], 0)
        end = token.end()
        if depth > NESTING_MAX:
            return True
    for bracket in _NO_BRACKETS.sub("", text[end:]):
        depth += _LEVELS[bracket]
        if depth > NESTING_MAX:
            return True
    return False


def _check_surrogates(document: Any) -> None:
    if isinstance(document, str):
        try:
            document.encode()
        except UnicodeEncodeError:
            raise ValueInvalid("A string has a surrogate without its pair.") from None
    elif isinstance(document, list):
        for item in document:
            _check_surrogates(item)
    elif isinstance(document, dict):
        for name, item in document.items():
            _check_surrogates(name)
            _check_surrogates(item)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueInvalid(f"The name {shown(twice)} occurs twice in an object.")
    return members


def _integer(text: str) -> int:
    if len(text) > _WHOLE_DIGITS_MAX:
        raise _beyond(text)
    number = int(text)
    if abs(number) > _DOUBLE_MAX:
        raise _beyond(text)
    return number


def _number(text: str) -> Decimal | float:
    number = float(text)
    if number in (math.inf, -math.inf):
        raise _beyond(text)
    exponent = text.lower().partition("e")[2]
    if len(text) > DIGITS_MAX or (exponent and abs(int(exponent)) > DIGITS_MAX):
        return number
    return Decimal(text)


def _beyond(text: str) -> ValueInvalid:
    return ValueInvalid(f"The number {text[:40]}{'...' * (len(text) > 40)} is beyond the range of a double.")


def _constant(text: str) -> NoReturn:
    raise ValueInvalid(f"{text} is not a JSON number.")


def shown(value: object) -> str:
    """Return a value for a message: at most 80 characters, as JSON where that is possible. A surrogate
    without its pair is escaped, for it is not in UTF-8."""
    text = str(value) if isinstance(value, Decimal) else json.dumps(value, default=str, ensure_ascii=False)
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 80 else f"{text[:77]}..."


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_number, parse_int=_integer, parse_constant=_constant
)


def has_edge_times(data: bytes) -> bool:
    """Return true if a time in a record may be outside the years 1 to 9999 in UTC, or has escaped signs.

    A part of each text, or the sign of the offset that is needed, is searched before it: that is faster.
    """
    return (
        (b"+" in data and b"0001-01-01" in data)
        or (b"9999" in data and b"9999-12-31" in data)
        or (b"\\" in data and b"\\u003" in data)
    )


def count_sign(data: bytes, sign: bytes) -> int:
    """Return how often one byte occurs in a text: faster than `bytes.count` where the text is large."""
    if numpy is None or len(data) < _VECTOR_BYTES:
        return data.count(sign)
    return int(numpy.count_nonzero(numpy.frombuffer(data, "u1") == ord(sign)))


def count_pairs(data: bytes) -> int | None:
    """Return the number of `":` in the text of objects: at least that of the pairs in them.

    None for white space before a colon, which could hide a pair.
    """
    if numpy is None or len(data) < _VECTOR_BYTES:
        if b" :" in data or b"\t:" in data or b"\n:" in data or b"\r:" in data:
            return None
        return data.count(b'":')
    spaces = [sign for space, sign in zip(_SPACES, _SPACE_COLONS, strict=True) if space in data]
    views = [numpy.frombuffer(data, "<u2", (len(data) - start) // 2, start) for start in (0, 1)]
    for sign in spaces:
        if any((view == sign).any() for view in views):
            return None
    return sum(int(numpy.count_nonzero(view == _QUOTE_COLON)) for view in views)
