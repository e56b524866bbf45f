"""Names shared by the job that writes the tables and all their readers."""

from typing import Final

ENTRIES: Final = "entries"  # the table of a log's records
CURSOR: Final = "__entries"  # cursor of the log: the index at which that job continues
LOG_ID_PROPERTY: Final = "commitlog.logId"  # of `entries`: hex id of the log whose records it holds
RECORDS: Final = (
    "records"  # of a log with a schema: the records as typed columns; a new one is `records_v{n}`
)
DEAD_LETTERS: Final = "dead_letters"  # the records that do not match the schema
CURRENT: Final = "current"  # the newest record of each key; a new one is `current_v{n}`
KEYS_PROPERTY: Final = "commitlog.keys"  # of `current`: JSON array of the columns that identify a row
CLUSTERING_PROPERTY: Final = "commitlog.clusterBy"  # of typed tables: JSON array, as the job set it
MOVED_PROPERTY: Final = "commitlog.moved"
"""Begin of properties of `dead_letters`. With a point and a version of the schema: the least index of the
older letters that replays with it have moved. Alone, by earlier releases, a JSON object: the first version of
a compatibility group, and that index."""
REFILL_PROPERTY: Final = "commitlog.refill"
"""Property of typed tables that were removed and made again: an id of that, then REFILLED once they hold all
their rows."""
REFILLED: Final = "false"
RESTORED_PROPERTY: Final = "commitlog.restored"  # of typed tables: the newest RESTORE that the job repaired
JOURNALS: Final = "events"  # the table of the nodes' journals
JOURNAL_TABLES: Final = (JOURNALS, "watermarks", "sync_state_sets", "quarantine_truncated")
EPOCH_TABLES: Final = ("epochs", "epoch_files")
PROGRESS_FILE: Final = "progress.json"  # of the job, beside the logs' folders; or progress-NAME.json
FAILED: Final = "failed"  # state of a job, in that file
RUNNING: Final = "running"  # likewise; the job writes the file twice a second
SILENT_MS: Final = 60_000
"""Without a report for longer, a running job was probably killed, or cannot write the file."""
CATALOG_NAMES_FILE: Final = "_catalog_names.json"  # in the folder of a log: {table: name in a catalog}
COVERED_INDEX: Final = "covered_index"  # note of a commit of `events`: the newest committed index in them
BEGIN_PROPERTY: Final = "commitlog.beginIndex"  # of `entries`: every data record from this index on is a row


def is_silent(state: str, updated_ms: int, now_ms: int) -> bool:
    """Return whether a job has last reported that it runs, longer ago than a job that runs can have."""
    return state == RUNNING and now_ms - updated_ms > SILENT_MS


def application_of(table: str) -> str:
    """Return the application under which commits of rows claim a place in a table (Delta's `txnAppId`)."""
    return f"commitlog-{table}"


def end_application_of(table: str) -> str:
    """Return the application under which commits without rows claim the end of a table `records`."""
    return f"{application_of(table)}-through"
