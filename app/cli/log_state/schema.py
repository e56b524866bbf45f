"""`commitlog schema`: the schema of a log, set from a file, shown, checked, inferred; dead letters again."""

import base64
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.cli.context import (
    CommandFailed,
    ExitCode,
    Target,
    counted,
    failure_of,
    json_option,
    print_json,
    print_table,
    printable,
    target_options,
)
from app.cli.delta.job_options import spark_conf_option, tables_option
from app.cli.log_state.schema_samples import last_option, mismatches_of, newest_values
from app.local.spark_job import DEFAULT_TABLES, REPLAY_JOB, become_job, job_arguments
from storage.units import NO_INDEX

if TYPE_CHECKING:
    from app.client import CommitlogClient
    from app.schemas import LogSchema

_SUFFIXES = {".ddl": "json", ".avsc": "avro", ".desc": "protobuf", ".pb": "protobuf", ".binpb": "protobuf"}
_FIRST = {
    "message": None,
    "key_columns": (),
    "compatibility": "backward",
    "on_invalid": "dead_letter",
    "cluster_by": (),
}
"""Options of the first version that are not given. A later version keeps those of the newest one."""


def definition_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """FILE and the options that describe its definition. None, or no column: not given."""
    for option in (
        click.option(
            "--cluster-by",
            multiple=True,
            help="Column by which the table is clustered. May be repeated; '' for none.",
        ),
        click.option(
            "--on-invalid",
            type=click.Choice(["dead_letter", "reject"]),
            help="Appends of records that do not match: stored (the default of version 1), or refused.",
        ),
        click.option(
            "--compatibility",
            type=click.Choice(["backward", "none"]),
            help="backward (the default of version 1): the new version must read what the newest one reads.",
        ),
        click.option("--key", "key_columns", multiple=True, help="Key column. May be repeated; '' for none."),
        click.option("--message", help="Full name of the Protobuf message."),
        click.option(
            "--format",
            type=click.Choice(["json", "avro", "protobuf"]),
            help="Default: by the suffix; json for .ddl, avro for .avsc, protobuf for .desc, .pb and .binpb, "
            "else that of the newest version, or json.",
        ),
        click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path)),
    ):
        command = option(command)
    return command


@click.group("schema")
@json_option
def schema_command(as_json: bool) -> None:
    """Set, show, check and infer the schema of a log; replay its dead letters.

    A schema describes the records of a log: JSON by a JSON Schema or Spark DDL, Avro or Protobuf. The
    Spark job writes records that match to typed columns. Versions are in the log, in order with its records.

    \b
    Examples:
      commitlog schema infer --last 1000 --log orders > orders.json
      commitlog schema check orders.json --log orders
      commitlog schema set orders.json --key id --on-invalid reject --log orders
      commitlog schema show --log orders
      commitlog schema replay --log orders
    """


def _definition(file: Path, format_name: str) -> str:
    if format_name == "protobuf":
        return base64.b64encode(file.read_bytes()).decode()
    try:
        text = file.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{file} is not text; set --format protobuf for a descriptor set") from error
    if not text:
        raise click.UsageError(f"{file} is empty")
    return text


def _asked(file: Path, given: Mapping[str, Any], newest: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields of the schema that `definition_options` describe: an option that is not given is
    that of the newest version; of the first version, that of _FIRST."""
    kept_format = "json" if newest is None else newest["format"]
    format_name = given["format"] or _SUFFIXES.get(file.suffix.lower(), kept_format)
    asked = {"format": format_name, "definition": _definition(file, format_name)}
    for name, first in _FIRST.items():
        option = given[name]
        if option is None or option == ():
            asked[name] = first if newest is None else newest[name]
        else:
            asked[name] = option if isinstance(option, str) else tuple(filter(None, option))
    if format_name != "protobuf" and not given["message"]:
        asked["message"] = None
    return asked


def _option(name: str) -> str:
    """Return the option of a field of the schema."""
    return f"--{name.removesuffix('_columns').replace('_', '-')}"


def _newest(client: "CommitlogClient") -> dict[str, Any] | None:
    """Return the newest version, None for a log without a schema."""
    from app.client.errors import NotFound

    try:
        return client.schema()
    except NotFound as error:
        if error.code != "schema-not-found":
            raise
        return None


def _newest_to_keep(
    client: "CommitlogClient", given: Mapping[str, Any]
) -> tuple[dict[str, Any] | None, int | None]:
    """Return the newest version and its number, 0 for a log without a schema.

    A token that may set a schema may not be able to read it: then nothing can be kept, and both are None.
    """
    from app.client.errors import Problem

    try:
        newest = _newest(client)
        return newest, 0 if newest is None else newest["version"]
    except Problem as problem:
        missing = [_option(name) for name in _FIRST if name != "message" and not given[name]]
        if problem.code != "forbidden":
            raise
        if missing:
            raise CommandFailed(
                f"the token may not read the newest version, whose {', '.join(missing)} would be kept: "
                "set these options ('' for no column), or use a token with the scope `read`",
                ExitCode.FAILED,
            ) from problem
        return None, None


@schema_command.command("set")
@definition_options
@click.option("--if-match", type=click.IntRange(0), help="Only if this is the newest version; 0: none.")
@target_options
def set_schema(
    target: Target,
    file: Path,
    if_match: int | None,
    **given: Any,
) -> None:
    """Set the next version of the schema from FILE.

    An option that is not given keeps its value in the newest version. The content of the newest version again
    changes nothing. A version that another client sets meanwhile is never replaced unseen: exit code 3.

    \b
    Examples:
      commitlog schema set orders.json --key id --log orders
      commitlog schema set order.desc --message shop.Order --log orders
      commitlog schema set orders.ddl --compatibility none --if-match 3 --log orders
    """
    from app.client.errors import ConditionFailed, Problem

    with target.client(writes=True) as client:
        newest, version = _newest_to_keep(client, given)
        asked = _asked(file, given, newest)
        try:
            done = client.put_schema(**asked, if_match=version if if_match is None else if_match)
        except ConditionFailed as problem:
            note = "" if if_match is not None else f"It was {version} when this command began: run it again."
            raise failure_of(problem, target.endpoints, writes=True, note=note) from problem
        except Problem as problem:
            if problem.code == "schema-incompatible":
                raise _incompatible(problem.document) from problem
            raise
    if target.as_json:
        print_json(done)
        return
    reach = "all records" if done["version"] == 1 else f"the records after index {done['index']}"
    click.echo(f"{target.log}: version {done['version']} applies to {reach}")
    if newest is not None and newest["version"] != done["version"]:
        _show_kept(newest, given, done)
    _show_columns(done)
    if newest is not None:
        _show_widened(_widened(_log_schema(newest), _log_schema(done)))


def _show_kept(newest: Mapping[str, Any], given: Mapping[str, Any], done: Mapping[str, Any]) -> None:
    """Show the options that were kept, but for those of a first version, and a change of --on-invalid."""
    kept = [
        f"{_option(name)} {value}"
        for name, first in _FIRST.items()
        if not given[name] and done[name] not in (first, [])
        for value in ([done[name]] if isinstance(done[name], str) else done[name])
    ]
    if kept:
        click.echo(f"Kept from version {newest['version']}: {' '.join(kept)}")
    if newest["on_invalid"] != done["on_invalid"]:
        effect = {"dead_letter": "stored", "reject": "refused"}
        click.echo(
            f"Records that do not match are {effect[done['on_invalid']]} "
            f"(--on-invalid {done['on_invalid']}); in version {newest['version']} they were "
            f"{effect[newest['on_invalid']]}."
        )


def _incompatible(document: Mapping[str, Any]) -> CommandFailed:
    lines = [f"  {_shown(each)}" for each in document["differences"]]
    text = f"not compatible with version {document['version']}; --compatibility none accepts it:"
    return CommandFailed("\n".join([text, *lines]), ExitCode.FAILED, document)


def _shown(difference: Mapping[str, Any]) -> str:
    text = f"{difference['path'] or '/'}: {difference['detail']}"
    return f"{text} To keep them: without the option --key." if difference["kind"] == "key_changed" else text


@schema_command.command("show")
@click.option("--version", type=click.IntRange(1), help="Default: the newest.")
@click.option("--definition", is_flag=True, help="Print the definition alone.")
@target_options
def show_schema(target: Target, version: int | None, definition: bool) -> None:
    """Show one version of the schema and its columns.

    \b
    Examples:
      commitlog schema show --log orders
      commitlog schema show --log orders --version 1 --json
    """
    with target.client() as client:
        found = client.schema(version)
    if target.as_json:
        print_json(found)
    elif definition:
        click.echo(found["definition"])
    else:
        click.echo(
            f"{target.log}: version {found['version']} ({found['format']}), set at {found['index']}, "
            f"compatibility {found['compatibility']}, on_invalid {found['on_invalid']}"
        )
        _show_columns(found)


@schema_command.command("list")
@target_options
def list_schemas(target: Target) -> None:
    """List all versions of the schema, oldest first.

    \b
    Examples:
      commitlog schema list --log orders
    """
    with target.client() as client:
        found = client.schemas()
    if target.as_json:
        print_json({"schemas": found})
        return
    if not found:
        click.echo(f"log {target.log} has no schema")
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    columns = ("version", "index", "format", "columns", "key", "compatibility", "on_invalid")
    table = Table(*columns, box=SIMPLE_HEAD)
    for each in found:
        table.add_row(
            str(each["version"]),
            str(each["index"]),
            each["format"],
            ", ".join(column["name"] for column in each["columns"]),
            ", ".join(each["key_columns"]),
            each["compatibility"],
            each["on_invalid"],
        )
    print_table(table)


@schema_command.command("check")
@definition_options
@last_option
@target_options
def check_schema(
    target: Target,
    file: Path,
    last: int,
    **given: Any,
) -> None:
    """Check what `set` would do with FILE, and change nothing.

    Also shows how many of the newest records match it. Exit code 1: the definition is not compatible, or a
    record does not match.

    \b
    Examples:
      commitlog schema check orders.json --log orders
      commitlog schema check orders.json --last 10000 --json --log orders
    """
    from app.schemas import SchemaInvalid, SchemaLibraryMissing, columns_of, incompatibilities

    with target.client() as client:
        newest = _newest(client)
        asked = _log_schema(_asked(file, given, newest))
        try:
            columns = columns_of(asked)
        except (SchemaInvalid, SchemaLibraryMissing) as error:
            raise CommandFailed(f"{file}: {error}", ExitCode.USAGE) from error
        values = newest_values(client, last)
    differences = [
        {"path": each.path, "kind": each.kind, "detail": each.detail}
        for each in (incompatibilities(_log_schema(newest), asked) if newest is not None else ())
    ]
    widened = [] if newest is None else _widened(_log_schema(newest), asked)
    mismatches = mismatches_of(asked, values)
    document = {
        "columns": [
            {"name": each.name, "type": each.type, "nullable": each.nullable, "comment": each.comment}
            for each in columns
        ],
        "version": None if newest is None else newest["version"],
        "key_columns": [] if newest is None else newest["key_columns"],
        "differences": differences,
        "widened": widened,
        "records": len(values),
        "mismatches": [
            {"index": values[each.position][0], "pointer": each.pointer, "reason": each.reason}
            for each in mismatches
        ],
    }
    if target.as_json:
        print_json(document)
    else:
        _show_check(document)
    if mismatches or (differences and asked.compatibility == "backward"):
        raise click.exceptions.Exit(int(ExitCode.FAILED))


def _show_check(document: Mapping[str, Any]) -> None:
    _show_columns(document)
    for each in document["differences"]:
        click.echo(f"not compatible with version {document['version']}: {_shown(each)}")
    _show_widened(document["widened"])
    mismatches: Sequence[Mapping[str, Any]] = document["mismatches"]
    click.echo(f"{counted(document['records'])} read, {_not_matching(len(mismatches))}")
    for each in mismatches[:10]:
        click.echo(f"  index {each['index']}, {each['pointer'] or '/'}: {each['reason']}")


def _not_matching(count: int, of: str = "") -> str:
    return f"{count:,}{of} {'does' if count == 1 else 'do'} not match"


@schema_command.command("infer")
@last_option
@target_options
def infer_schema(target: Target, last: int) -> None:
    """Propose a JSON Schema that the newest records match, and print it.

    The standard error names the fields that it leaves out, and the first record that is not a JSON object.

    \b
    Examples:
      commitlog schema infer --last 1000 --log orders > orders.json
    """
    from app.schemas import LogSchema, SamplesUnusable, propose

    with target.client() as client:
        values = newest_values(client, last)
    try:
        proposal = propose([value for _, value in values])
    except SamplesUnusable as error:
        raise CommandFailed(f"no schema follows from the records of {target.log}: {error}") from error
    click.echo(proposal.definition)
    if proposal.left_out:
        click.echo(
            "Left out, because they do not have one type or no column can have the name; their values "
            "would be in `_rescued`: " + printable(", ".join(proposal.left_out[:20])),
            err=True,
        )
    unused = mismatches_of(LogSchema(0, NO_INDEX, "json", proposal.definition), values)
    if unused:
        index = values[unused[0].position][0]
        count = _not_matching(len(unused), f" of {counted(len(values))}")
        click.echo(f"{count} this schema; the first one is at index {index}: {unused[0].reason}", err=True)


@schema_command.command("replay")
@tables_option
@click.option("--version", type=click.IntRange(1), help="Version to read with. Default: the newest.")
@spark_conf_option
@target_options
def replay_dead_letters(
    target: Target, tables: str | None, version: int | None, spark_conf: Path | None
) -> None:
    """Move the dead letters that match the schema now to `records`.

    The Spark job that follows the log may run meanwhile. A killed replay can be repeated: each record is
    moved once.

    \b
    Examples:
      commitlog schema set orders.json --log orders
      commitlog schema replay --log orders
      commitlog schema replay --version 2 --tables s3://bucket/tables --json --log orders
    """
    if tables is None and spark_conf is None:
        tables = str(DEFAULT_TABLES)
    arguments = [
        *job_arguments(target.endpoints_of_job(), target.log),
        *(["--json"] if target.as_json else []),
    ]
    options = (("--tables", tables), ("--version", version), ("--conf", spark_conf))
    for name, given in (*options, ("--give-up-s", target.give_up_s)):
        arguments += [] if given is None else [name, str(given)]
    become_job(REPLAY_JOB, arguments, target.token)


def _log_schema(document: Mapping[str, Any]) -> "LogSchema":
    from app.schemas import LogSchema

    return LogSchema(
        version=document.get("version", 0),
        index=document.get("index", -1),
        format=document["format"],
        definition=document["definition"],
        message=document["message"],
        key_columns=tuple(document["key_columns"]),
        compatibility=document["compatibility"],
        on_invalid=document["on_invalid"],
        cluster_by=tuple(document["cluster_by"]),
    )


def _widened(old: "LogSchema", new: "LogSchema") -> list[str]:
    """Return the columns whose types become wider in the same tables; none if one cannot be read here."""
    from app.schemas import SchemaInvalid, SchemaLibraryMissing
    from app.schemas.differences import differences

    try:
        found = differences(old, new)
    except (SchemaInvalid, SchemaLibraryMissing):
        return []
    in_place = all(each.is_followed for each in found)
    return [f"{each.path}: {each.detail}" for each in found if in_place and each.kind == "widened"]


def _show_widened(widened: Sequence[str]) -> None:
    if widened:
        click.echo(
            "Type widening: deltalake, pandas, DuckDB and Polars refuse tables with a wider type "
            "(docs/spark.md, Readers without Spark)."
        )
    for each in widened:
        click.echo(f"  {each}")


def _show_columns(document: Mapping[str, Any]) -> None:
    for column in document["columns"]:
        required = "" if column["nullable"] else ", required"
        comment = f": {printable(column['comment'])}" if column["comment"] else ""
        click.echo(f"  {column['name']} {column['type']}{required}{comment}")
