"""Drivers of typed tables that kill themselves at each of their commits, one after the other:
`python -m tests.spark.typed.typed_driver_to_kill TABLES ENDPOINTS UNTIL POINTS [RACERS]`.

Each driver is a fork of this process without a JVM: it makes all its commits itself.
POINTS: where they die, comma-separated, each a number of a commit and `-` (the file is written, nothing names
it) or `+` (the commit is made, nothing after it). After them RACERS drivers run to the end side by side.
Prints the signals or exit codes as JSON.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from spark_jobs.materialize.typed import TypedTables
from spark_jobs.source.log_reads import LogReads
from spark_jobs.tables import table_writer
from spark_jobs.tables.local.commits import LocalTable
from spark_jobs.typed import current


def die_at(number: int, *, is_made: bool) -> None:
    """Kill this process before or after its commit of that number, from 0."""
    whole, count = LocalTable._commit, 0

    def commit(table: LocalTable, version: int, actions: Any) -> bool:
        nonlocal count
        count += 1
        if count == number + 1 and not is_made:
            os.kill(os.getpid(), signal.SIGKILL)
        done = whole(table, version, actions)
        if count == number + 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    LocalTable._commit = commit  # type: ignore[method-assign]


def drive(tables: Path, endpoints: str, until: int) -> None:
    """Bring the typed tables up to `until` in some steps."""
    client = LogReads(endpoints.split(","), "default")
    typed = TypedTables(None, client, lambda table: str(tables / table.name), follows=False)  # type: ignore[arg-type]
    typed.open()
    for step in range(until // 2, until + 1, max(1, until // 4)):
        typed.extend(step)
    typed.extend(until)


def forked(arguments: tuple[Path, str, int], point: str | None) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if point is not None:
                die_at(int(point[:-1]), is_made=point.endswith("+"))
            drive(*arguments)
            code = 0
        finally:
            os._exit(code)
    return child


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    arguments = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    table_writer.links_commits = current.links_commits = lambda *_: True
    killed = [ended(forked(arguments, point)) for point in sys.argv[4].split(",")]
    racers = [forked(arguments, None) for _ in range(int(sys.argv[5]))]
    sys.stdout.write(json.dumps([*killed, *map(ended, racers)]) + "\n")


if __name__ == "__main__":
    main()
