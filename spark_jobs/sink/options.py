"""Options of a write to `format("commitlog")`, and the columns that it accepts, validated before any task."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from app.errors import ConfigError
from spark_jobs.errors import OptionError
from spark_jobs.private_folder import private_folder
from spark_jobs.source.options import parse_endpoints, parse_token

NAMES = ("endpoint", "token", "log", "stagingLocation", "producerId", "producerEpoch", "batchId")
SPARKS_OWN = ("checkpointlocation", "queryname")  # Spark passes them with a stream's options
STAGING_IN_CHECKPOINT = "commitlog-staging"
MAX_BATCH_ID = 2**42  # a sequence is batch id * 2^20 + chunk, and has 63 bits


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """Destination of the rows, and the name under which they are stored once.

    producer_id, producer_epoch: of the appends. staging: folder of this producer, the same path on the driver
    and on every executor. batch_id: of a batch write; a stream has one per micro-batch. query: Spark's id of
    the stream, empty if its checkpoint cannot be read. repeatable: whether a failed write may be repeated
    under the same names.
    """

    endpoints: tuple[str, ...]
    token: str | None
    log: str
    producer_id: str
    producer_epoch: int
    staging: Path
    batch_id: int = 0
    query: str = ""
    repeatable: bool = True


def parse_sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Read Spark's options, whose names ignore case. Raises OptionError."""
    known = {name.lower(): name for name in NAMES}
    values: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() in known:
            values[known[name.lower()]] = value
        elif not (streaming and name.lower() in SPARKS_OWN):
            raise OptionError(f"unknown option {name!r}; a write to commitlog takes {', '.join(NAMES)}")
    lower = {name.lower(): value for name, value in given.items()}
    query = _query_id(lower) if streaming else ""
    identity = _stream_identity(values, lower, query) if streaming else _batch_identity(values)
    producer_id, staging, repeatable = identity
    epoch = _number(values, "producerEpoch")
    if not 1 <= len(producer_id) <= 255:
        raise OptionError("producerId must have 1 to 255 characters")
    if streaming and "batchId" in values:
        raise OptionError("batchId is for batch writes: a stream counts its micro-batches itself")
    return SinkOptions(
        endpoints=parse_endpoints(values.get("endpoint", "")),
        token=parse_token(values.get("token", "")),
        log=values.get("log", "default"),
        producer_id=producer_id,
        producer_epoch=epoch,
        staging=Path(staging) / f"{quote(producer_id, safe='')}.{epoch}",
        batch_id=_number(values, "batchId"),
        query=query,
        repeatable=repeatable,
    )


def _query_id(lower: Mapping[str, str]) -> str:
    """Return the query's id from the stream's checkpoint, empty if that is not on this machine."""
    checkpoint = _local_folder(lower.get("checkpointlocation", ""))
    if checkpoint is None or not (metadata := checkpoint / "metadata").is_file():
        return ""  # of a URL, or of a file system that only Spark can access
    return str(json.loads(metadata.read_text("utf-8"))["id"])


def _stream_identity(
    values: Mapping[str, str], lower: Mapping[str, str], query: str
) -> tuple[str, str, bool]:
    """Use the query's own id and a folder in its checkpoint, unless the options name others."""
    checkpoint = _local_folder(lower.get("checkpointlocation", ""))
    staging = values.get("stagingLocation")
    if staging is None:
        if checkpoint is None:
            raise OptionError(
                "stagingLocation: name a folder that the driver and all executors share, or give the query "
                "a checkpointLocation in one"
            )
        staging = str(checkpoint / STAGING_IN_CHECKPOINT)
    producer_id = values.get("producerId", query)
    if not producer_id:
        raise OptionError("producerId: name the query, or give it a checkpointLocation, which does")
    return producer_id, staging, True


def _batch_identity(values: Mapping[str, str]) -> tuple[str, str, bool]:
    """Use a new name for each write, unless the options name it: then it may be repeated."""
    if "producerId" in values:
        if "stagingLocation" not in values:
            raise OptionError("producerId needs a stagingLocation: a repeat must find there what was staged")
        if "batchId" not in values:
            raise OptionError(
                "producerId needs a batchId, which rises from write to write: a write under an earlier one "
                "is taken for its repeat"
            )
        return values["producerId"], values["stagingLocation"], True
    for name in ("producerEpoch", "batchId"):
        if name in values:
            raise OptionError(f"{name} requires a producerId")
    return f"spark-{uuid.uuid4()}", values.get("stagingLocation") or _own_staging(), False


def _own_staging() -> str:
    """Return the folder of this machine for writes that name none."""
    try:
        return str(private_folder("commitlog-staging"))
    except (ConfigError, OSError) as error:
        raise OptionError(f"without a stagingLocation rows are staged on this machine: {error}") from error


def _local_folder(location: str) -> Path | None:
    """Return a checkpoint's folder, None if it is not on a file system that is mounted here."""
    url = urlsplit(location)
    if not location or url.scheme not in ("", "file"):
        return None
    return Path(url.path)


def _number(values: Mapping[str, str], name: str) -> int:
    text = values.get(name, "0")
    if not text.isdecimal() or int(text) >= MAX_BATCH_ID:
        raise OptionError(f"{name}: {text!r} is not a whole number from 0 to {MAX_BATCH_ID - 1}")
    return int(text)


def check_columns(schema: StructType) -> None:
    """Raise OptionError unless the rows can be records: with the column, and the remedy."""
    complaints = []
    if "value" not in schema.fieldNames():
        complaints.append("the column `value` is missing")
    for column in schema:
        wanted = {
            "value": "binary or string; for anything else select F.to_json(...) or a cast",
            "key": "binary or string",
            "headers": "array<struct<name: string, value: binary or string>>",
            "timestamp": "timestamp",
        }.get(column.name)
        if wanted is None:
            complaints.append(
                f"column `{column.name}` is none of value, key, headers, timestamp: select those"
            )
        elif not _fits(column.name, column.dataType):
            complaints.append(f"column `{column.name}` is {column.dataType.simpleString()}, not {wanted}")
    if complaints:
        raise OptionError(f"these rows cannot be written to a log: {'; '.join(complaints)}")


def _fits(name: str, kind: DataType) -> bool:
    if name == "timestamp":
        return isinstance(kind, TimestampType | TimestampNTZType)
    if name != "headers":
        return isinstance(kind, BinaryType | StringType)
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return (
        [field.name for field in fields] == ["name", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, BinaryType | StringType)
    )
