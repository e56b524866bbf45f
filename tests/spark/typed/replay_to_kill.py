"""Replays of dead letters that kill themselves after one of their commits, one after the other:
`python -m tests.spark.typed.replay_to_kill TABLES ENDPOINTS POINTS GATEWAY`.

Each replay is a fork of this process, and uses the JVM of the test, which goes on. GATEWAY: its port and
secret, as `PORT:SECRET`. POINTS: names of COMMITS, comma-separated; after the last one a replay runs to its
end. Prints the signals or exit codes as JSON.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from spark_jobs.materialize.replay import DeadLetterReplay
from spark_jobs.source.log_reads import LogReads
from spark_jobs.typed.claimed_table import ClaimedTable
from spark_jobs.typed.current import CurrentTable

COMMITS: dict[str, tuple[Any, str]] = {  # what makes each commit of a replay, in their order but for the last
    "records": (ClaimedTable, "insert_missing"),
    "current": (CurrentTable, "_apply_before"),
}


def die_after(commit: str) -> None:
    owner, name = COMMITS[commit]
    whole = getattr(owner, name)

    def made(*given: Any, **options: Any) -> None:
        whole(*given, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, made)


def session_of(gateway: str) -> SparkSession:
    """Return the session of a running JVM."""
    os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = gateway.split(":")
    joined = launch_gateway()
    session = joined.jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession().get()
    context = joined.jvm.JavaSparkContext.fromSparkContext(session.sparkContext())
    conf = SparkConf(_jconf=context.getConf())
    return SparkSession(SparkContext(gateway=joined, jsc=context, conf=conf), session.newSession())


def replay(tables: Path, endpoints: str, point: str | None, gateway: str) -> int:
    """Return the exit code of a replay in a process of its own."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if point is not None:
                die_after(point)
            client = LogReads(endpoints.split(","), "default")
            DeadLetterReplay(session_of(gateway), client, lambda table: str(tables / table.name)).run()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    tables, endpoints, points, gateway = sys.argv[1:]
    ended = [replay(Path(tables), endpoints, point, gateway) for point in (*points.split(","), None)]
    sys.stdout.write(json.dumps(ended) + "\n")


if __name__ == "__main__":
    main()
