"""Removal of records that an unclean election has lost, after a loss receipt (A-04).

The log is closed meanwhile: an open log never removes what it knows to be committed (R-07). Each step is
durable before the next, and all of them may be repeated after a crash:

    1. the receipt: every record that is removed
    2. the checkpoint: committed up to the remaining records; the state's snapshot is removed and rebuilt
    3. a copy takes the place of the segment that is cut: a reader may still hold views of its records, which
       were committed, and an access to a truncated byte of a view would end the process
    4. the log is truncated; or emptied, if the trim that moved its beginning is lost too: the other replicas
       keep the trimmed records, and a copy without them would never count
"""

from contextlib import closing
from dataclasses import dataclass
from typing import Final

from app.ha.auto_switch.slave_side import Rollback
from app.log.contract import NO_INDEX
from app.log.control_records import TrimRecord, decode_control
from app.node.repair.receipts import ReceiptWriter
from storage.file_system import FileSystem
from storage.format.records import control_value
from storage.log.checkpoint import Checkpoint, CheckpointFile, SnapshotFile
from storage.log.commitlog import Commitlog, CommitlogConfig
from storage.log.log_folder import replace_by_copy
from storage.units import MIB

_READ_BYTES: Final = 4 * MIB


@dataclass(frozen=True, slots=True)
class RemovedRecords:
    """Result of a rollback. end_index: of the log before it. receipt: path of the loss receipt."""

    end_index: int
    receipt: str


def roll_back(
    files: FileSystem,
    data_folder: str,
    log_name: str,
    *,
    log_id: int,
    storage: CommitlogConfig,
    rollback: Rollback,
) -> RemovedRecords | None:
    """Roll back a closed log; return what was removed, None if nothing was. Blocks.

    Raises CorruptLog, CorruptFile, StorageFull, DiskError: the call may be repeated.
    """
    folder = f"{data_folder}/logs/{log_name}"
    with closing(Commitlog.open(files, folder, log_id=log_id, config=storage)) as log:
        if log.end_index <= rollback.index:
            return None
        end_index = log.end_index
        path = ReceiptWriter(files, data_folder, log_name).write(log, rollback.index, rollback.epoch)
        keeps_records = rollback.index >= max(log.begin_index, 0) and not _loses_begin(log, rollback.index)
        checkpoint_file = CheckpointFile(files, f"{folder}/checkpoint")
        committed_index = min(checkpoint_file.load().committed_index, rollback.index)
        checkpoint_file.save(Checkpoint(committed_index if keeps_records else NO_INDEX))
        SnapshotFile(files, f"{folder}/state").remove()
        if not keeps_records:
            log.reset(0, 0)  # nothing is left that the next master's log could continue
            kept_offset = None
        else:
            kept_offset = log.batch_at(rollback.index).offset
    if kept_offset is not None:
        replace_by_copy(files, folder, kept_offset)
        with closing(Commitlog.open(files, folder, log_id=log_id, config=storage)) as log:
            log.truncate_after(rollback.index)
    return None if path is None else RemovedRecords(end_index, path)


def _loses_begin(log: Commitlog, index: int) -> bool:
    """Return whether a trim up to the log's beginning, or beyond it, is among the records after `index`."""
    next_index = index + 1
    while log.begin_index > 0 and next_index <= log.end_index:
        for batch in log.read_batches(next_index, _READ_BYTES):
            record = decode_control(control_value(batch)) if batch.is_control else None
            if isinstance(record, TrimRecord) and record.until_index >= log.begin_index:
                return True
            next_index = batch.next_index
    return False
