"""A materializer in a process of its own, for tests that kill it: `python -m tests.spark.driver_to_kill
POINT ...`.

POINT is where it kills itself: `after-write`, when Delta has the rows and Spark does not know yet; or `none`.
"""

import os
import signal
import sys

from spark_jobs import entries
from spark_jobs.run import materialize, parse_arguments
from spark_jobs.session import build_session
from spark_jobs.tables import append_once


def append_and_die(*arguments: object, **options: object) -> None:
    append_once(*arguments, **options)  # type: ignore[arg-type]
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    if sys.argv[1] == "after-write":
        entries.append_once = append_and_die  # type: ignore[assignment]
    config = parse_arguments(sys.argv[2:])
    materialize(config, spark=build_session("killed", jars_folder=config.spark.session.jars, fast_tests=True))
