"""Records that an unclean election removes from a copy, while readers still use them (A-04)."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

READ_WHILE_CUT = """
import sys
from app.ha.auto_switch.slave_side import Rollback
from app.node.repair.ha_loss import roll_back
from storage.files import OsFileSystem
from storage.format.batch import FIRST_CHAIN, stamp
from storage.format.records import RecordColumns, encode_body
from storage.log.checkpoint import Checkpoint, CheckpointFile
from storage.log.commitlog import Commitlog, CommitlogConfig

files, data, config = OsFileSystem(), sys.argv[1], CommitlogConfig(tail_cache_bytes=0)
after = int(sys.argv[2])
folder = f"{data}/logs/log"
files.make_folders(folder)
log = Commitlog.open(files, folder, log_id=7, config=config)
for number in range(10):
    records = RecordColumns()
    records.add(b"%d" % number * 20_000)
    log.append([
        stamp(
            encode_body(records),
            log_id=7,
            base_index=number,
            term=1,
            timestamp_ms=1,
            offset=log.end_offset,
            previous_chain=FIRST_CHAIN if number == 0 else log.last_chain,
        )
    ])
ticket = log.start_sync()
ticket.run()
log.finish_sync(ticket)
log.settle(9)
CheckpointFile(files, f"{folder}/checkpoint").save(Checkpoint(9))
read = log.read_batches(0, 1 << 20)
copies = [bytes(batch.data) for batch in log.read_batches(0, 1 << 20)]
log.close()
removed = roll_back(files, data, "log", log_id=7, storage=config, rollback=Rollback(after, 2))
assert [bytes(batch.data) for batch in read] == copies
log = Commitlog.open(files, folder, log_id=7, config=config)
assert (log.end_index, removed.end_index) == (after, 9)
print(removed.receipt)
"""


@pytest.mark.rule("A-04")
@pytest.mark.parametrize("after", [3, 8])
def test_a_reader_keeps_the_records_that_are_removed_while_it_reads(tmp_path: Path, after: int) -> None:
    """They were committed, so they are read without a copy: an access to a truncated page ends a process."""
    done = subprocess.run(
        [sys.executable, "-c", READ_WHILE_CUT, str(tmp_path), str(after)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    receipt = pa.ipc.open_file(done.stdout.strip()).read_all()
    assert receipt.column("index").to_pylist() == [*range(after + 1, 10)]
