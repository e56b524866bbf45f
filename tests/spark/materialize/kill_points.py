"""The named points at which a materializer is killed (driver_to_kill.py), in the order of its work.

opened        `entries` is there, nobody holds its log
leased        the cursor is held, no query runs
planned       Spark has noted where the first micro-batch ends, nothing of it is written
file-written  the rows lie in a whole file, which no commit of the table names as yet
committed     Delta has the rows, nobody knows
moved         the cursor stands behind them, Spark does not know
known         Spark knows, and has noted the next micro-batch
told          what a range of events tells is in its tables, `events` itself lacks them
"""

LONE = ("opened", "leased", "moved")  # close to "planned" and "committed": `make chaos` alone kills there
POINTS = ("opened", "leased", "planned", "file-written", "committed", "moved", "known", "told")
