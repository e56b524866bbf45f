"""The named points at which a materializer is killed (driver_to_kill.py), in the order of its work.

`opened`        `entries` exists, no job holds its log
`leased`        the cursor is held, no batch was planned
`planned`       the job has decided where the first batch ends, nothing of it is written
`file-written`  the rows lie in a whole file, which no commit of the table names as yet
`committed`     the table has the rows, the cursor is before them
`moved`         the cursor is after them
`known`         the job has decided where the next batch ends
`reported`      the rows of a range of events are in the other tables, `events` itself lacks them
"""

# A driver costs a JVM: `make chaos` kills it at these points. `make test` kills drivers without one: steps.py
POINTS = ("opened", "leased", "planned", "file-written", "committed", "moved", "known", "reported")
