"""Loss receipts: files with the records that an unclean election removes from this copy.

DATA/receipts/LOG/EPOCH-FIRST-LAST.arrow: an Arrow IPC file with the columns of a read (`READ_SCHEMA`: index,
term, offset, timestamp, key, value, headers, type), one record batch per stored batch. Durable before the
truncation; after a crash in between, the same receipt is written again.
"""

from typing import Final

import pyarrow as pa

from storage.file_system import FileSystem, write_durably
from storage.format.records import READ_SCHEMA, read_columns
from storage.log.commitlog import Commitlog
from storage.units import MIB

FOLDER: Final = "receipts"
_READ_BYTES: Final = 4 * MIB


class ReceiptWriter:
    """The receipts of one log at this node. `write` blocks on the disk."""

    def __init__(self, files: FileSystem, data_folder: str, log_name: str) -> None:
        self._files = files
        self._folder = f"{data_folder}/{FOLDER}/{log_name}"

    def write(self, log: Commitlog, after_index: int, epoch: int) -> str | None:
        """Write every record after `after_index`; return the file's path, None if there is none.

        epoch: of the unclean election. Raises StorageFull, DiskError, CorruptLog: then nothing may be
        truncated.
        """
        first_index = max(after_index + 1, log.begin_index)
        if log.end_index < first_index or log.begin_index < 0:
            return None
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, READ_SCHEMA) as writer:
            index = first_index
            while index <= log.end_index:
                for batch in log.read_batches(index, _READ_BYTES):
                    columns = read_columns(batch)
                    writer.write_batch(columns.slice(max(0, index - batch.base_index)))
                    index = batch.next_index
        self._files.make_folders(self._folder)
        path = f"{self._folder}/{epoch:020d}-{first_index:020d}-{log.end_index:020d}.arrow"
        write_durably(self._files, path, sink.getvalue().to_pybytes())
        return path
