"""Names shared by the job that writes the table `entries` and all its readers."""

from typing import Final

ENTRIES: Final = "entries"  # the table of a log's records
CURSOR: Final = "__entries"  # cursor of the log: the index at which that job continues
LOG_ID_PROPERTY: Final = "commitlog.logId"  # of `entries`: hex id of the log whose records it holds
BEGIN_PROPERTY: Final = "commitlog.beginIndex"  # of `entries`: every data record from this index on is a row
