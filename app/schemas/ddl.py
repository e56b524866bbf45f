"""Spark DDL strings as schemas: `id BIGINT NOT NULL, tags ARRAY<STRING>, at TIMESTAMP COMMENT 'UTC'`."""

import re
from typing import Final, NoReturn

from app.schemas.data_types import (
    DECIMAL_DIGITS_MAX,
    DEPTH_MAX,
    DataType,
    DecimalType,
    Field,
    ListType,
    MapType,
    Primitive,
    StructType,
)
from app.schemas.errors import SchemaInvalid

SPELLINGS: Final = {
    "boolean": "boolean",
    "tinyint": "tinyint",
    "byte": "tinyint",
    "smallint": "smallint",
    "short": "smallint",
    "int": "int",
    "integer": "int",
    "bigint": "bigint",
    "long": "bigint",
    "float": "float",
    "real": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ltz": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
}
"""Names of types in DDL, and the types."""
_DECIMALS: Final = ("decimal", "dec", "numeric")
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<name>[A-Za-z_]\w*|\d+)|`(?P<quoted>(?:[^`]|``)+)`|(?P<sign>[<>(),:])
    |'(?P<text>(?:[^'\\]|\\.|'')*)'|"(?P<text2>(?:[^"\\]|\\.)*)")""",
    re.VERBOSE,
)


def struct_of_ddl(text: str) -> StructType:
    """Return the columns of a DDL string. Raises SchemaInvalid with the position in the text."""
    parser = _Parser(text)
    fields = parser.fields(ends="")
    return StructType(fields)


def type_of_ddl(text: str) -> DataType:
    """Return one type of DDL. Raises SchemaInvalid."""
    parser = _Parser(text)
    kind = parser.type(0)
    parser.expect_end()
    return kind


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str, int]] = []  # kind, text, position
        position = 0
        while text[position:].strip():
            found = _TOKEN.match(text, position)
            if found is None:
                raise SchemaInvalid(
                    "", f"DDL, character {position + 1}: unexpected {text[position:][:20]!r}."
                )
            kind = str(found.lastgroup)
            self._tokens.append((kind, found[kind], found.start(kind)))
            position = found.end()
        self._at = 0

    def fields(self, ends: str, depth: int = 0) -> tuple[Field, ...]:
        """Read `name type …, name type …` until the token `ends`, "" for the end of the text."""
        found = []
        while True:
            found.append(self._field(depth))
            if self._is(","):
                self._at += 1
            else:
                break
        if ends:
            self._expect(ends)
        else:
            self.expect_end()
        return tuple(found)

    def _field(self, depth: int) -> Field:
        kind, text, _ = self._peek()
        if kind not in ("name", "quoted"):
            self._fail("a column name")
        self._at += 1
        name = text.replace("``", "`") if kind == "quoted" else text
        if self._is(":"):
            self._at += 1
        column_type = self.type(depth)
        is_optional, comment = True, ""
        while self._peek()[0] == "name":
            word = self._peek()[1].lower()
            self._at += 1
            if word == "not" and self._peek()[1].lower() == "null":
                self._at += 1
                is_optional = False
            elif word == "comment" and self._peek()[0] in ("text", "text2"):
                comment = re.sub(r"\\(.)|''", lambda found: found[1] or "'", self._peek()[1])
                self._at += 1
            else:
                self._at -= 1
                self._fail("NOT NULL, COMMENT 'text', or the next column")
        return Field(name, column_type, nullable=is_optional, required=not is_optional, comment=comment)

    def type(self, depth: int) -> DataType:
        if depth > DEPTH_MAX:
            raise SchemaInvalid("", f"The schema has more than {DEPTH_MAX} levels.")
        kind, text, _ = self._peek()
        if kind != "name":
            self._fail("a type")
        word = text.lower()
        self._at += 1
        if word in SPELLINGS:
            return Primitive(SPELLINGS[word])
        if word in _DECIMALS:
            return self._decimal()
        if word == "array":
            self._expect("<")
            element = self.type(depth + 1)
            self._expect(">")
            return ListType(element)
        if word == "map":
            self._expect("<")
            key = self.type(depth + 1)
            self._expect(",")
            value = self.type(depth + 1)
            self._expect(">")
            return MapType(key, value)
        if word == "struct":
            self._expect("<")
            return StructType(self.fields(ends=">", depth=depth + 1))
        self._at -= 1
        self._fail(
            "a type of this list: " + ", ".join([*SPELLINGS, "decimal(p,s)", "array", "map", "struct"])
        )

    def _decimal(self) -> DecimalType:
        precision, scale = 10, 0
        if self._is("("):
            self._at += 1
            precision = self._number()
            if self._is(","):
                self._at += 1
                scale = self._number()
            self._expect(")")
        if not (1 <= precision <= DECIMAL_DIGITS_MAX and 0 <= scale <= precision):
            raise SchemaInvalid(
                "",
                f"decimal({precision},{scale}): the precision must be between 1 and {DECIMAL_DIGITS_MAX}, "
                "the scale between 0 and the precision.",
            )
        return DecimalType(precision, scale)

    def _number(self) -> int:
        text = self._peek()[1]
        if not (text.isascii() and text.isdigit() and len(text) <= 3):
            self._fail("a number")
        self._at += 1
        return int(text)

    def _is(self, sign: str) -> bool:
        return self._peek()[:2] == ("sign", sign)

    def _peek(self) -> tuple[str, str, int]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("", "", -1)

    def _expect(self, sign: str) -> None:
        if not self._is(sign):
            self._fail(f"`{sign}`")
        self._at += 1

    def expect_end(self) -> None:
        if self._at < len(self._tokens):
            self._fail("`,` or the end")

    def _fail(self, expected: str) -> NoReturn:
        kind, text, position = self._peek()
        found = f"{text!r}" if kind else "the end"
        place = f"character {position + 1}" if kind else "end"
        raise SchemaInvalid("", f"DDL, {place}: expected {expected}, got {found}.")
