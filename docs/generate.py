"""Generator of docs/configuration.md, docs/tables.md and of tables in docs/operations.md, docs/schemas.md and
docs/api.md: `make docs` writes them, `--check` compares them.

Descriptions are attribute docstrings: the string literal directly below a field or a constant. A setting
without one is an error, so the pages are complete.
"""

import argparse
import ast
import inspect
import sys
import textwrap
import types
import typing
from collections.abc import Iterator
from dataclasses import MISSING
from dataclasses import fields as dataclass_fields
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import msgspec  # noqa: E402

from app.log import control_records, events  # noqa: E402
from app.schemas import avro, ddl, json_schema, protobuf  # noqa: E402
from app.schemas.differences import ALLOWED_KINDS, REFUSED_KINDS  # noqa: E402
from app.settings import file  # noqa: E402
from spark_jobs.session.settings import Locations, SessionSettings  # noqa: E402
from spark_jobs.tables import table as tables  # noqa: E402

NOTE = "<!-- Written by `make docs` from the docstrings of the code. Do not edit. -->\n"
UNITS = {"ms": "ms", "bytes_per_s": "bytes/s", "bytes": "bytes", "size": "bytes"}  # by the name's end
TYPES = {bool: "boolean", int: "integer", str: "string", Path: "path"}
KIB, MIB = 1024, 1024 * 1024


class MissingDescription(Exception):
    """A field or a table without an attribute docstring."""


class Key(NamedTuple):
    """One key of a section."""

    name: str
    kind: str
    default: str
    unit: str
    text: str


def attribute_docstrings(tree: ast.Module | ast.ClassDef) -> dict[str, str]:
    """Return the docstring of each assignment in the body of a module or class, by name."""
    found: dict[str, str] = {}
    for statement, following in zip(tree.body, tree.body[1:], strict=False):
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                pass
            case _:
                continue
        match following:
            case ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = inspect.cleandoc(text)
            case _:
                continue
    return found


def keys_of(config: type) -> list[Key]:
    """Return the keys that a dataclass or a pydantic model defines, in their order.

    Raises MissingDescription for a field without an attribute docstring.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(config))).body[0]
    assert isinstance(tree, ast.ClassDef)
    texts = attribute_docstrings(tree)
    hints = typing.get_type_hints(config)
    keys = []
    for name, default in _defaults(config):
        if name not in texts:
            raise MissingDescription(
                f"{config.__module__}.{config.__name__}.{name} has no attribute docstring"
            )
        unit = _unit(name, hints[name])
        text = " ".join(texts[name].split()).replace("|", "\\|")
        keys.append(Key(name, _kind(hints[name]), _shown(default, unit), unit, text))
    return keys


def _defaults(config: Any) -> Iterator[tuple[str, object]]:
    if issubclass(config, file._Table):
        for name, info in config.model_fields.items():
            yield name, MISSING if info.is_required() else info.default
        return
    for field in dataclass_fields(config):
        yield field.name, field.default


def _kind(hint: Any) -> str:
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "string"
    if hint in TYPES:
        return TYPES[hint]
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return " or ".join(_kind(item) for item in typing.get_args(hint) if item is not type(None))
    items = [item for item in typing.get_args(hint) if item is not ...]
    if typing.get_origin(hint) is tuple:
        return (
            f"list of {_kind(items[0])}s" if len(items) == 1 else f"list of {len(items)} {_kind(items[0])}s"
        )
    if typing.get_origin(hint) is dict:
        return f"table of {_kind(items[1])}s"
    raise TypeError(f"no name for the type {hint!r}")


def _unit(name: str, hint: Any) -> str:
    if "integer" not in _kind(hint):
        return ""
    return next((unit for end, unit in UNITS.items() if name == end or name.endswith(f"_{end}")), "")


def _shown(value: object, unit: str) -> str:
    """Return a default as TOML."""
    match value:
        case _ if value is MISSING:
            return "required"
        case None:
            return ""
        case bool():
            return f"`{str(value).lower()}`"
        case int() if unit.startswith("bytes") and value >= KIB and value % KIB == 0:
            size = f"{value // MIB} MiB" if value % MIB == 0 else f"{value // KIB} KiB"
            return f"`{value}` ({size})"
        case Enum():
            return f'`"{value.value}"`'
        case Path():
            return f'`"{value.relative_to(ROOT) if value.is_absolute() else value}"`'
        case str():
            return f'`"{value}"`'
        case dict():
            return f"`{{{', '.join(f'{key} = {item}' for key, item in value.items())}}}`"
        case tuple():
            return f"`[{', '.join(repr(item) for item in value)}]`"
    return f"`{value}`"


def _table_of(keys: list[Key]) -> str:
    lines = ["| key | type | default | unit | meaning |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| `{key.name}` | {key.kind} | {key.default} | {key.unit} | {key.text} |" for key in keys]
    return "\n".join(lines)


def _about(config: type) -> str:
    """Return the first paragraph of the docstring without the errors that it raises."""
    text = " ".join((inspect.getdoc(config) or "").split("\n\n")[0].split())
    return text.partition(" Raises ")[0]


def configuration_page() -> str:
    """Return docs/configuration.md."""
    parts = [
        "# Configuration",
        NOTE,
        "## The node's file",
        "`commitlog serve --config FILE --node ID` reads a TOML file; the folder `conf` has examples. All "
        "nodes of a cluster use the same file. An unknown key is refused. An empty default means that the "
        "key is absent. Numbers such as D-04 are rules of [app/RULES.md](../app/RULES.md).",
    ]
    tables_of_file: dict[str, type] = {
        "[cluster]": file._Cluster,
        "[[nodes]]": file._NodeTable,
        "[[logs]]": file._LogTable,
    }
    notes = {
        "[cluster]": "Required.",
        "[[nodes]]": "One for each node; at least one.",
        "[[logs]]": "One for each log that the file defines. Logs can also be created at run time "
        "([api.md](api.md), section 5).",
    }
    for title, config in tables_of_file.items():
        parts += [f"### {title}", notes[title], _table_of(keys_of(config))]
    for name, config in file._SECTIONS.items():
        parts += [f"### [{name}]", _about(config), _table_of(keys_of(config))]
    parts += [
        "## The file of the Spark jobs",
        "Every Spark job takes `--conf FILE`, or the file that `COMMITLOG_SPARK_CONF` names; conf/spark.toml "
        "has every key. Command-line options override it. Relative paths are relative to the file.",
        "### [session]",
        _about(SessionSettings),
        _table_of(keys_of(SessionSettings)),
        "### [locations]",
        _about(Locations),
        _table_of(keys_of(Locations)),
        "### [conf]",
        'Any other setting of Spark by its name in quotes, such as `"spark.sql.ansi.enabled" = true`. These '
        "override the settings of the jobs.",
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def tables_page() -> str:
    """Return docs/tables.md. Raises MissingDescription for a table without an attribute docstring."""
    texts = attribute_docstrings(ast.parse(Path(tables.__file__).read_text(encoding="utf-8")))
    names = {id(value): name for name, value in vars(tables).items() if isinstance(value, tables.Table)}
    parts = [
        "# Delta tables",
        NOTE,
        "The Spark job writes one folder of tables for each log: `TABLES/LOG/NAME`. Indexes are inclusive "
        "unless the description states otherwise; offsets are in bytes; timestamps are in UTC. "
        "[spark_jobs/README.md](../spark_jobs/README.md) describes the jobs and how rows are written once.",
    ]
    for table in (*tables.TABLES, *tables.TYPED_TABLES):
        name = names[id(table)]
        if name not in texts:
            raise MissingDescription(f"{tables.__name__}.{name} has no attribute docstring")
        layout = f"Clustered by {_code(table.cluster_by)}. Statistics on {_code(table.statistics)}."
        rows = ["| column | type | meaning |", "| --- | --- | --- |"]
        rows += [
            f"| `{column.name}` | `{column.dataType.simpleString()}` | {table.columns[column.name]} |"
            for column in table.schema
        ]
        parts += [f"## {table.name}", texts[name], layout, "\n".join(rows)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def fields_of(struct: type[msgspec.Struct]) -> list[tuple[str, str]]:
    """Return (name, description) of each field that a struct defines.

    Raises MissingDescription for a field without an attribute docstring.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(struct))).body[0]
    assert isinstance(tree, ast.ClassDef)
    texts = attribute_docstrings(tree)
    found = []
    for field in msgspec.structs.fields(struct):
        if field.name not in texts:
            raise MissingDescription(f"{struct.__name__}.{field.name} has no attribute docstring")
        found.append((field.encode_name, " ".join(texts[field.name].split())))
    return found


def kinds_table(kinds: dict[str, Any], title: str) -> str:
    """Return the table of a set of structs that a tag distinguishes: kind, meaning, fields."""
    lines = [f"| kind | meaning | {title} |", "| --- | --- | --- |"]
    for kind, struct in kinds.items():
        fields = "<br>".join(f"`{name}`: {text}" for name, text in fields_of(struct))
        lines.append(f"| `{kind}` | {_about(struct)} | {fields} |")
    return "\n".join(lines)


def with_section(path: Path, name: str, text: str) -> str:
    """Return the page at `path` with `text` between the comments that begin and end the section `name`."""
    return with_sections(path, {name: text})


def with_sections(path: Path, sections: dict[str, str]) -> str:
    """Return the page at `path` with a text between the comments that begin and end each section."""
    page = path.read_text(encoding="utf-8")
    for name, text in sections.items():
        begin, end = f"<!-- {name}: written by `make docs` -->\n", f"<!-- end of {name} -->"
        before, found, rest = page.partition(begin)
        _, ended, after = rest.partition(end)
        if not (found and ended):
            raise MissingDescription(f"{path.name} has no section {name!r}")
        page = f"{before}{begin}{text}\n{end}{after}"
    return page


def schema_sections() -> dict[str, str]:
    """Return the tables of docs/schemas.md by section."""
    types = {f"type `{kind}`": _code(columns) for kind, columns in json_schema.JSON_TYPES.items()}
    types["type `object`"] = "`struct` with `properties`, `map` with `additionalProperties`"
    types["type `array`"] = "`array`"
    keywords = {f"`{name}`": text for name, text in json_schema.STRUCTURE.items()}
    keywords[_code(json_schema.VALIDATION)] = "refuse records, change no column"
    keywords[_code(json_schema.ANNOTATIONS)] = "no effect, but `description` or `title` is the comment"
    spellings: dict[str, list[str]] = {}
    for name, kind in ddl.SPELLINGS.items():
        spellings.setdefault(kind, []).append(name)
    spellings["decimal(p,s)"] = ["decimal(p,s)", "dec(p,s)", "numeric(p,s)"]
    spellings |= {"array<T>": ["array<T>"], "map<string,T>": ["map<string,T>"]}
    spellings["struct<…>"] = ["struct<name: type, …>"]
    of_avro = {f"`{name}`": f"`{kind}`" for name, kind in avro.PRIMITIVES.items()}
    of_avro |= {f"`{name}` ({base})": f"`{kind}`" for name, (base, kind) in avro.LOGICAL_TYPES.items()}
    of_avro["`decimal` (bytes, fixed)"] = "`decimal(precision,scale)`"
    of_avro |= {"`array`": "`array`", "`map`": "`map<string,T>`", "`record`": "`struct`"}
    of_protobuf = {f"`{name}`": f"`{kind}`" for name, kind in protobuf.PRIMITIVES.items()}
    of_protobuf[f"`{protobuf.TIMESTAMP}`"] = "`timestamp`"
    of_protobuf["wrappers such as `google.protobuf.StringValue`"] = "nullable column of the wrapped type"
    of_protobuf |= {"`repeated`": "`array`", "`map<K, V>`": "`map`", "another message": "`struct`"}
    kinds = {f"`{name}`": f"yes: {text}" for name, text in ALLOWED_KINDS.items()}
    kinds |= {f"`{name}`": f"no: {text}" for name, text in REFUSED_KINDS.items()}
    return {
        "keywords": "\n\n".join(
            (_two_columns("keyword", "meaning", keywords), _two_columns("JSON", "columns", types))
        ),
        "DDL": _two_columns("column", "in DDL", {f"`{k}`": _code(tuple(v)) for k, v in spellings.items()}),
        "Avro": _two_columns("Avro", "column", of_avro),
        "Protobuf": _two_columns("Protobuf", "column", of_protobuf),
        "differences": _two_columns("difference", "allowed", kinds),
    }


def _two_columns(first: str, second: str, rows: dict[str, str]) -> str:
    lines = [f"| {first} | {second} |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| {name} | {text} |" for name, text in rows.items())])


def _code(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def pages() -> dict[Path, str]:
    """Return the pages with generated content by path."""
    docs = ROOT / "docs"
    operations = docs / "operations.md"
    api = docs / "api.md"
    control = kinds_table(control_records.CONTROL_KINDS, "fields")
    return {
        api: with_section(api, "control records", control),
        docs / "configuration.md": configuration_page(),
        docs / "schemas.md": with_sections(docs / "schemas.md", schema_sections()),
        docs / "tables.md": tables_page(),
        operations: with_section(operations, "events", kinds_table(events.KINDS, "fields of `data`")),
    }


def main() -> int:
    """Write the pages, or with --check compare them; return 1 when a page is not current, else 0."""
    parser = argparse.ArgumentParser(description="Write docs/configuration.md and docs/tables.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a page is not current")
    check = parser.parse_args().check
    code = 0
    for path, text in pages().items():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        if check:
            sys.stderr.write(f"{path.relative_to(ROOT)} is not current: run `make docs`\n")
            code = 1
        else:
            path.write_text(text, encoding="utf-8")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
