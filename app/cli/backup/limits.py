"""Limits of a cluster that the records of a backup must fit, compared before anything is written."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.context import CommandFailed

if TYPE_CHECKING:
    import pyarrow as pa

    from app.cli.backup.folder import BackupManifest

_UNITS = {"max_record_bytes": "bytes (value, key and headers)", "max_record_headers": "headers"}


def check_limits(folder: Path, manifest: "BackupManifest", limits: Mapping[str, Any]) -> None:
    """Raise CommandFailed for a record that the cluster refuses, and for a damaged file.

    limits: of the cluster, as /v1/cluster shows them.
    """
    from app.cli.backup.folder import read_part

    refused: dict[str, list[tuple[int, int]]] = {name: [] for name in _UNITS}
    for part in manifest.parts:
        table = read_part(folder, part)
        indexes = table.column("index").to_pylist()
        for name, sizes in (
            ("max_record_bytes", record_sizes(table)),
            ("max_record_headers", _header_counts(table)),
        ):
            refused[name] += [
                each for each in zip(indexes, sizes, strict=True) if each[1] > limits.get(name, each[1])
            ]
    if problems := [
        _refusal(folder, name, records, limits[name]) for name, records in refused.items() if records
    ]:
        raise CommandFailed(". ".join((*problems, "Nothing was written")))


def record_sizes(table: "pa.Table") -> list[int]:
    """Return the bytes of each record by which a limit counts them: value, key and headers."""
    contents = zip(*(table.column(name).to_pylist() for name in ("key", "value", "headers")), strict=True)
    return [
        len(key or b"")
        + len(value or b"")
        + sum(len(each["name"].encode()) + len(each["value"] or b"") for each in headers or ())
        for key, value, headers in contents
    ]


def _header_counts(table: "pa.Table") -> list[int]:
    return [len(headers or ()) for headers in table.column("headers").to_pylist()]


def _refusal(folder: Path, name: str, records: list[tuple[int, int]], limit: int) -> str:
    index, size = records[0]
    largest = max(size for _, size in records)
    return (
        f"the record {index} of {folder} has {size:,} {_UNITS[name]}; the cluster allows {limit:,} ({name}). "
        f"Records that exceed this: {len(records):,}. Set [limits] {name} to at least {largest} in the "
        "configuration of its nodes, restart them, and run the command again"
    )
