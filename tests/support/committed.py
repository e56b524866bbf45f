"""The committed part of a replica's log, and whether every acknowledged value is at its promised index:
for the checkers of simulated groups."""

from collections.abc import Callable, Mapping

import pyarrow as pa

from storage.file_system import FileSystem
from storage.format.batch import Batch
from storage.format.records import decode_body
from storage.log.commitlog import Commitlog


def values_of(batch: Batch) -> list[str]:
    return [value.decode() for value in decode_body(batch.header, batch.body).column("value").to_pylist()]


def values_in(log: Commitlog) -> list[str]:
    """The values of all records that the log holds."""
    found: list[str] = []
    index = max(log.begin_index, 0)
    while index <= log.end_index:
        batch = log.batch_at(index)
        found += [] if batch.is_control else values_of(batch)
        index = batch.next_index
    return found


def values_in_receipts(files: FileSystem, log_name: str) -> list[str]:
    """The values in all receipts of a node whose data folder is `data`."""
    found: list[str] = []
    for name in files.list(f"data/receipts/{log_name}"):
        table = pa.ipc.open_file(files.read(f"data/receipts/{log_name}/{name}")).read_all()
        found += [value.decode() for value in table.column("value").to_pylist()]
    return found


def broken_promise(
    name: str,
    log: Commitlog,
    committed_index: int,
    committed: Mapping[int, Batch],
    promised: Mapping[str, int],
    may_lack: Callable[[str], bool],
) -> str | None:
    """Return the promise that the log of the replica `name` does not keep, None if it keeps all.

    committed: by base index, the committed batches of any replica. promised: by value, the index at which it
    was acknowledged. may_lack: whether a value may be missing nevertheless.
    """
    places: dict[str, int] = {}
    index = max(log.begin_index, 0)
    while index <= committed_index:
        batch = log.batch_at(index)
        known = committed.get(batch.base_index)
        if known is not None and known != batch:
            return f"{name}: {batch} diverges from {known}"
        if not batch.is_control:
            for place, value in enumerate(values_of(batch), batch.base_index):
                if places.setdefault(value, place) != place:
                    return f"{name}: {value} stands at {places[value]} and at {place}"
        index = batch.next_index
    for value, index in promised.items():
        if places.get(value) != index and not may_lack(value):
            return f"{name}: {value}, acknowledged at {index}, stands at {places.get(value)}"
    return None
