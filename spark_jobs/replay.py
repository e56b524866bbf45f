"""Process that replays the dead letters of logs: `python -m spark_jobs.replay --endpoint URLS --tables DIR
[--log NAME]`.

Each dead letter is read again with the newest version of the log's schema, or with --version. Those that
match move to `records`, each once (materialize/replay.py). Exit code 0: done; 1: Spark failed; 2: an invalid
configuration, or a log without a schema; 5: no node answers; 130: Ctrl-C.
"""

import json
import sys
from dataclasses import asdict
from functools import partial
from types import SimpleNamespace
from typing import Any

from spark_jobs.interruption import INTERRUPTED, end_at_once

if __name__ == "__main__":
    end_at_once(INTERRUPTED)

import click

from app.errors import ConfigError
from app.extras import imports_of_extra

with imports_of_extra("spark", __name__):
    from spark_jobs.materialize.replay import DeadLetterReplay

from app.schemas import SchemaInvalid, SchemaLibraryMissing
from spark_jobs.errors import OptionError, SourceError, Unreachable, write_failure
from spark_jobs.job_lines import waits_reported
from spark_jobs.materialize.followed_logs import named
from spark_jobs.session.jars import JarsUnavailable
from spark_jobs.session.locations import location
from spark_jobs.session.settings import (
    give_up_option,
    given_options,
    logs_option,
    settings_of,
    spark_options,
    tables_of,
    tables_option,
    token_option,
)
from spark_jobs.session.spark_session import JavaNotFound, open_session
from spark_jobs.source.log_reads import GIVE_UP_S, LogReads
from spark_jobs.source.options import parse_endpoints
from spark_jobs.tables.conflicts import SPARK_ERRORS
from spark_jobs.tables.table import table_path
from spark_jobs.tables.views import require_tables

FAILURES = (
    *SPARK_ERRORS,
    SourceError,
    SchemaInvalid,
    SchemaLibraryMissing,
    JarsUnavailable,
    JavaNotFound,
)


@click.command(
    epilog="\b\nExamples:\n"
    "  python -m spark_jobs.replay --endpoint http://127.0.0.1:8101 --tables commitlog-data/tables\n"
    "  python -m spark_jobs.replay --endpoint URLS --tables DIR --log orders --version 3"
)
@click.option("--endpoint", required=True, metavar="URLS", help="Base URLs of nodes, comma-separated.")
@tables_option
@logs_option
@token_option
@click.option(
    "--version", type=click.IntRange(1), help="Version of the schema to read with.  [default: newest]"
)
@give_up_option(GIVE_UP_S)
@click.option("--json", is_flag=True, help="Print JSON.")
@spark_options
def options(**given: Any) -> SimpleNamespace:
    """Move the dead letters of logs that match the schema now to `records`."""
    return SimpleNamespace(**given)


def main(arguments: list[str] | None = None) -> int:
    """Replay, and print a line for each log. Return the exit code."""
    given = given_options(options, "spark_jobs.replay", arguments)
    try:
        with waits_reported(as_json=given.json):
            _replay(given)
    except (ConfigError, OptionError) as error:
        write_failure(error, 2, as_json=given.json)
        return 2
    except FAILURES as error:
        code = 5 if isinstance(error, Unreachable) else 1
        write_failure(error, code, as_json=given.json)
        return code
    return 0


def _replay(given: SimpleNamespace) -> None:
    settings = settings_of(given)
    tables = tables_of(given, settings)
    endpoints = parse_endpoints(given.endpoint)
    of_cluster = LogReads(endpoints, "", given.token, given.give_up_s)
    logs = named(given.log or ("default",), of_cluster.log_names)
    with open_session("commitlog-replay", settings) as spark:
        for log in logs:
            require_tables(spark, tables, log)
            client = LogReads(endpoints, log, given.token, given.give_up_s)
            path_of = partial(table_path, location(tables), log)
            done = DeadLetterReplay(spark, client, path_of).run(given.version)
            line = f"{log}: {done.moved:,} dead letters moved to records with version {done.version}"
            text = json.dumps({"log": log, **asdict(done)}) if given.json else f"{line}, {done.left:,} left"
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
