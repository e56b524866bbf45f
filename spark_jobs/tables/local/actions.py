"""Actions of a commit to a Delta table: what has changed, and what it was for, as Delta notes it.

Source: the Delta transaction log protocol, sections Actions, Transaction Identifiers, Clustered Table.
"""

import json
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pyspark.sql.types import StructType

from app.tables.delta_log import DeltaSnapshot
from app.tables.table_files import DataFile
from spark_jobs.tables.local.data_files import DeltaAction, WrittenFile, compact_json

WRITER_FEATURES = ("domainMetadata", "clustering", "invariants", "appendOnly")  # of a clustered table
ENGINE = "commitlog"


def creation(
    schema: StructType,
    *,
    cluster_by: Sequence[str],
    comments: Mapping[str, str],
    properties: Mapping[str, str],
) -> list[DeltaAction]:
    """Return the first commit of a table. comments: by the name of the column."""
    described = schema.jsonValue()
    for column in described["fields"]:
        column["metadata"] = {"comment": comments[column["name"]]}
    clustering = {"clusteringColumns": [[name] for name in cluster_by], "domainName": "delta.clustering"}
    parameters = {
        "partitionBy": "[]",
        "clusterBy": compact_json(list(cluster_by)),
        "isManaged": "false",
        "properties": compact_json(dict(properties)),
    }
    return [
        _info("CREATE TABLE", parameters, isBlindAppend=True, operationMetrics={}),
        {
            "metaData": {
                "id": str(uuid.uuid4()),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": compact_json(described),
                "partitionColumns": [],
                "configuration": dict(properties),
                "createdTime": _now_ms(),
            }
        },
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": WRITER_FEATURES}},
        {
            "domainMetadata": {
                "domain": "delta.clustering",
                "configuration": compact_json(clustering),
                "removed": False,
            }
        },
    ]


def write_info(
    snapshot: DeltaSnapshot,
    added: Sequence[WrittenFile],
    note: Mapping[str, Any],
    mode: str,
    *,
    is_blind: bool = True,
) -> DeltaAction:
    """Describe a write. is_blind: as of `commit_info`."""
    metrics = {
        "numFiles": len(added),
        "numOutputRows": sum(file.rows for file in added),
        "numOutputBytes": sum(file.size_bytes for file in added),
    }
    parameters = {"mode": mode, "partitionBy": "[]"}
    return commit_info(
        snapshot, "WRITE", parameters, metrics, is_blind=is_blind, userMetadata=json.dumps(note)
    )


def merge_info(snapshot: DeltaSnapshot, removed: Collection[DataFile], added: WrittenFile) -> DeltaAction:
    """Describe a merge of files, as Delta notes that it has compacted them by itself."""
    metrics = {
        "numRemovedFiles": len(removed),
        "numRemovedBytes": sum(file.size_bytes for file in removed),
        "numAddedFiles": 1,
        "numAddedBytes": added.size_bytes,
    }
    return commit_info(snapshot, "OPTIMIZE", {"predicate": "[]", "zOrderBy": "[]", "auto": "true"}, metrics)


def commit_info(
    snapshot: DeltaSnapshot,
    operation: str,
    parameters: Mapping[str, str],
    metrics: Mapping[str, int] | None = None,
    *,
    is_blind: bool = False,
    **more: str,
) -> DeltaAction:
    """Describe a change of a version of the table. is_blind: it depends on no row, and removes none."""
    return _info(
        operation,
        parameters,
        readVersion=snapshot.version,
        isBlindAppend=is_blind,
        operationMetrics={name: str(value) for name, value in (metrics or {}).items()},
        **more,
    )


def metadata_action(snapshot: DeltaSnapshot, **changed: Any) -> DeltaAction:
    """Return the metadata of a version with some fields changed."""
    known = {name: value for name, value in snapshot.metadata.items() if value is not None}
    return {"metaData": {**known, **changed}}


def claim_action(application: str, claim: int) -> DeltaAction:
    return {"txn": {"appId": application, "version": claim, "lastUpdated": _now_ms()}}


def remove_action(path: str, size_bytes: int, *, is_gone: bool = True) -> DeltaAction:
    """is_gone: False: its rows are in another file now."""
    file = {
        "path": path,
        "deletionTimestamp": _now_ms(),
        "dataChange": is_gone,
        "extendedFileMetadata": True,
    }
    return {"remove": {**file, "partitionValues": {}, "size": size_bytes}}


def _info(operation: str, parameters: Mapping[str, str], **more: Any) -> DeltaAction:
    info = {"timestamp": _now_ms(), "operation": operation, "operationParameters": parameters}
    return {"commitInfo": {**info, "isolationLevel": "Serializable", "engineInfo": ENGINE, **more}}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
