"""Random schemas, and random records that match them, nearly match them, or are damaged."""

import json
import random
from typing import Any

PRIMITIVES = (
    *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(5,2)", "decimal(38,0)"),
    *("decimal(2,2)", "string", "date", "timestamp", "timestamp_ntz", "binary"),
)
NUMBERS = (
    *("0", "-0", "1", "127", "128", "-129", "2147483648", "9223372036854775807", "9223372036854775808"),
    *(
        "18446744073709551616",
        "1.0",
        "1.5",
        "-2.50",
        "1e3",
        "1E+2",
        "1e-2",
        "1e400",
        "1e-400",
        "0.10",
        "99.999",
    ),
    *("9007199254740993", "9007199254740993.0", "3.4028235677973366e38", "3.4028235677973365e38"),
    *("1" + "0" * 309, "NaN", "-", "01", "1.", ".5", "0." + "0" * 1200 + "1"),
)
TEXTS = (
    *(
        "",
        "a",
        "é",
        "😀",
        "\\u00e9",
        "\\ud83d\\ude00",
        "\\ud800",
        "\\u0000",
        '\\"',
        '\\":',
        '" :',
        "x : y",
        "x: y",
    ),
    *("2013-01-31", "2013-02-30", "0000-01-01", "2013-01-31T10:00:00Z", "2013-01-31T10:00:00"),
    *("2013-01-31t10:00:00.1234565z", "2013-01-31 10:00:00.12345649+05:30", "2013-01-31T10:00:00-0530"),
    *("0001-01-01T00:00:00+01:00", "\\u0030001-01-01T00:00:00+01:00", "9999-12-31T23:59:59.9999999Z"),
    *(
        "9999-12-31T23:59:59-01:00",
        "2013-01-31T10\\u003a00:00Z",
        "2013-01-31T10:00:60Z",
        "YQ==",
        "YR==",
        "YQ",
    ),
    *("1.10", "1e2", "1_0", "+1", ".5", "007", "0.001", "\t", "\n"),
)
GOOD = {
    "boolean": ("true", "false"),
    "decimal": ("1.5", '"2.25"', "-3", "0", "-0.0", "1e1", "1.250", "0.99"),
    "string": ('"abc"', '"é"', '"new"', '"a:b"', '"' + "y" * 9 + '"'),
    "date": ('"2013-01-31"',),
    "timestamp": ('"2013-01-31T10:00:00Z"', '"2013-01-31T10:00:00.5+05:30"'),
    "timestamp_ntz": ('"2013-01-31T10:00:00"',),
    "binary": ('"YWJj"', '""'),
}


class RandomRecords:
    """One random schema, and its records. hostility: from 0 (nearly all match) to 1."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._hostility = self._random.choice((0, 0.05, 0.3, 1))
        self._types: dict[str, Any] = {name: self._type(0) for name in ("a", "b", "c", "d_e", "é")}
        is_ddl = self._random.random() < 0.5
        self.definition = self._ddl() if is_ddl else json.dumps(self._json_schema(self._types))

    def record(self) -> bytes:
        value = self._struct(self._types, 0).encode("utf-8", "surrogatepass")
        chance = self._random.random() / max(self._hostility, 0.01)
        at = self._random.randrange(len(value))
        if chance < 0.03:
            return value[:at]
        if chance < 0.06:
            return value[:at] + bytes([self._random.randrange(256)]) + value[at + 1 :]
        if chance < 0.08:
            return value + value
        return value

    def _type(self, depth: int) -> Any:
        """A type: a name, ["array" or "map", type], or a dict of fields."""
        chance = self._random.random()
        if depth > 1 or chance < 0.65:
            return self._random.choice(PRIMITIVES)
        if chance < 0.85:
            return ["array" if chance < 0.75 else "map", self._type(depth + 1)]
        return {name: self._random.choice(PRIMITIVES) for name in "xyz"}

    def _ddl(self) -> str:
        def text(kind: Any) -> str:
            if isinstance(kind, list):
                return f"array<{text(kind[1])}>" if kind[0] == "array" else f"map<string,{text(kind[1])}>"
            if isinstance(kind, dict):
                return f"struct<{','.join(f'{name} {text(inner)}' for name, inner in kind.items())}>"
            return str(kind)

        choice = self._random.choice
        null = ("", "", " NOT NULL")
        return ", ".join(f"`{name}` {text(kind)}{choice(null)}" for name, kind in self._types.items())

    def _json_schema(self, kind: Any) -> dict[str, Any]:
        chance = self._random.random
        schema: dict[str, Any]
        if isinstance(kind, dict):
            properties = {name: self._json_schema(inner) for name, inner in kind.items()}
            required = [name for name in kind if chance() < 0.4]
            schema = {"type": "object", "properties": properties, "required": required}
            if chance() < 0.1:
                schema["additionalProperties"] = False
        elif isinstance(kind, list) and kind[0] == "array":
            schema = {"type": "array", "items": self._json_schema(kind[1])}
        elif isinstance(kind, list):
            schema = {"type": "object", "additionalProperties": self._json_schema(kind[1])}
        else:
            schema = self._primitive(kind)
        if chance() < 0.4 and kind is not self._types:
            schema["type"] = [schema["type"], "null"]
        return schema

    def _primitive(self, kind: str) -> dict[str, Any]:
        choice = self._random.choice
        if kind == "boolean":
            return {"type": "boolean"}
        schema: dict[str, Any] = {"type": "string", "x-type": kind}
        if kind.endswith("int"):
            schema["type"] = "integer"
            schema |= choice(
                ({}, {}, {"minimum": -5.5}, {"exclusiveMaximum": 100}, {"exclusiveMinimum": 1e300})
            )
        elif kind in ("float", "double") or (kind.startswith("decimal") and choice((True, False))):
            schema["type"] = "number"
            schema |= choice(({}, {}, {"minimum": 0.1}, {"exclusiveMaximum": 1.5}, {"multipleOf": 0.5}))
        elif kind == "string":
            schema |= choice(({}, {}, {"enum": ["new", "é", None]}, {"maxLength": 3}, {"pattern": "^a"}))
        return schema

    def _struct(self, fields: dict[str, Any], depth: int) -> str:
        chance = self._random.random
        names = [name for name in fields if chance() > 0.15 * self._hostility]
        if chance() < 0.05 + 0.1 * self._hostility:
            names.append(self._random.choice((*fields, "new", "A", "\\u0061")))
        colon = self._random.choice((":", ": ", " :", "\n:")) if chance() < 0.3 * self._hostility else ":"
        comma = self._random.choice((",", ", "))
        return (
            "{" + comma.join(f'"{name}"{colon}{self._value(fields.get(name), depth)}' for name in names) + "}"
        )

    def _value(self, kind: Any, depth: int) -> str:
        choice = self._random.choice
        if kind is None or self._random.random() < 0.12 * self._hostility:
            return self._any(depth)
        if self._random.random() < 0.02 + 0.06 * self._hostility:
            return "null"
        if isinstance(kind, dict):
            return self._struct(kind, depth + 1)
        if isinstance(kind, list):
            items = [self._value(kind[1], depth + 1) for _ in range(choice((0, 1, 3)))]
            if kind[0] == "array":
                return f"[{','.join(items)}]"
            return "{" + ",".join(f'"k{choice((at, at, 0))}":{item}' for at, item in enumerate(items)) + "}"
        if kind.endswith("int"):
            return str(self._random.randint(-130, 130))
        if kind in ("float", "double"):
            return choice(
                (repr(self._random.uniform(-1e3, 1e3)), str(self._random.getrandbits(62)), "1.5e10")
            )
        return choice(GOOD[kind.partition("(")[0]])

    def _any(self, depth: int) -> str:
        chance = self._random.random()
        if chance < 0.2:
            return self._random.choice(("null", "true", "false"))
        if chance < 0.5:
            return self._random.choice((*NUMBERS, str(self._random.randint(-(10**40), 10**40))))
        if chance < 0.85 or depth > 3:
            return f'"{self._random.choice(TEXTS)}"'
        items = [self._any(depth + 1) for _ in range(self._random.randrange(3))]
        return f"[{','.join(items)}]" if chance < 0.92 else f'{{"x":{items[0] if items else 1},"n{depth}":2}}'
