"""The newest records of a log, and those that do not match a schema."""

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from app.cli.context import CommandFailed, ExitCode
from storage.units import MIB

if TYPE_CHECKING:
    from app.client import CommitlogClient
    from app.schemas import LogSchema, Mismatch

_VALUES_BYTES = 64 * MIB  # of the newest records that are read
_LAST_MAX = 100_000

last_option = click.option(
    "--last",
    type=click.IntRange(1, _LAST_MAX),
    default=1_000,
    show_default=True,
    help="Number of the newest records to read.",
)


def newest_values(client: "CommitlogClient", last: int) -> list[tuple[int, bytes]]:
    """Return (index, value) of the newest records, without tombstones. Raises CommandFailed for more than
    _VALUES_BYTES."""
    from app.cli.records.pages import pages

    found = []
    size_bytes = 0
    for page in pages(client, last, last=last):
        for record in page.records:
            if record.get("value_base64") is not None:
                found.append((int(record["index"]), base64.b64decode(record["value_base64"])))
            elif record.get("value") is not None:
                found.append((int(record["index"]), str(record["value"]).encode()))
            else:
                continue
            size_bytes += len(found[-1][1])
        if size_bytes > _VALUES_BYTES:
            raise CommandFailed(
                f"the newest {last:,} records have more than {_VALUES_BYTES // MIB} MiB: lower --last",
                ExitCode.USAGE,
            )
    return found


def mismatches_of(schema: "LogSchema", values: Sequence[tuple[int, bytes]]) -> "list[Mismatch]":
    """Return the records that do not match; `position` is that in `values`."""
    import pyarrow as pa

    from app.schemas import RecordDecoder

    decoder = RecordDecoder({schema.version: schema}, schema.version)
    return decoder.decode(pa.array([value for _, value in values], pa.binary())).errors
