"""Limits of a cluster that a backup exceeds: the refusal names the record, its size and the limit."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from app.cli.backup.folder import BackupManifest, write_part
from app.cli.backup.limits import check_limits
from app.cli.context import CommandFailed

HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))


def backup_of(folder: Path, *records: dict[str, Any]) -> BackupManifest:
    """A backup of these records in two files, with the indexes 10, 11, …"""
    manifest = BackupManifest("id", "test", "orders", {}, 10, 10 + len(records), "", "", "")
    half = len(records) // 2
    for start, part in ((0, records[:half]), (half, records[half:])):
        columns = {
            "index": pa.array([10 + start + at for at in range(len(part))], pa.int64()),
            "timestamp": pa.array([0] * len(part), pa.timestamp("us", tz="UTC")),
            "key": pa.array([each.get("key") for each in part], pa.binary()),
            "value": pa.array([each.get("value") for each in part], pa.binary()),
            "headers": pa.array([each.get("headers") for each in part], HEADERS),
        }
        manifest.parts.append(write_part(folder, pa.table(columns)))
    return manifest


def test_the_refusal_names_index_size_limit_and_remedy(tmp_path: Path) -> None:
    header = {"name": "h", "value": b"12345"}
    small, large, many = {"value": b"1"}, {"key": b"12", "value": b"34567", "headers": [header]}, [header] * 3
    manifest = backup_of(tmp_path, small, small, large, {"value": None, "headers": many})
    check_limits(tmp_path, manifest, {"max_record_bytes": 18, "max_record_headers": 3})
    with pytest.raises(CommandFailed) as refused:
        check_limits(tmp_path, manifest, {"max_record_bytes": 12, "max_record_headers": 2})
    remedy = "in the configuration of its nodes, restart them, and run the command again"
    assert refused.value.message.split(". ") == [
        f"the record 12 of {tmp_path} has 13 bytes (value, key and headers); the cluster allows 12 "
        "(max_record_bytes)",
        "Records that exceed this: 2",
        f"Set [limits] max_record_bytes to at least 18 {remedy}",
        f"the record 13 of {tmp_path} has 3 headers; the cluster allows 2 (max_record_headers)",
        "Records that exceed this: 1",
        f"Set [limits] max_record_headers to at least 3 {remedy}",
        "Nothing was written",
    ]


def test_a_damaged_file_is_found_first(tmp_path: Path) -> None:
    manifest = backup_of(tmp_path, {"value": b"1"}, {"value": b"2"})
    file = tmp_path / manifest.parts[1].file
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    with pytest.raises(CommandFailed, match="is damaged"):
        check_limits(tmp_path, manifest, {"max_record_bytes": 100, "max_record_headers": 1})
