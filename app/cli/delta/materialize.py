"""`commitlog materialize`: the Spark job that writes the Delta tables."""

from pathlib import Path

import click

from app.cli.context import Target, target_options
from app.cli.delta.job_options import spark_conf_option, tables_option
from app.local.spark_job import DEFAULT_TABLES, JOB, become_job, job_arguments

DEFAULT_CHECKPOINTS = Path("commitlog-data/checkpoints")


@click.command("materialize")
@tables_option
@click.option(
    "--checkpoints",
    help="Folder for scratch files of the streaming query, of which --once has none; the tables alone record "
    f"the progress.  [default: {DEFAULT_CHECKPOINTS}]",
)
@spark_conf_option
@click.option(
    "--catalog",
    metavar="NAME",
    help="CATALOG or CATALOG.SCHEMA of Spark in which the tables get names as well.",
)
@click.option("--once", is_flag=True, help="Stop when all records committed so far are in the tables.")
@target_options
def materialize_command(
    target: Target,
    tables: str | None,
    checkpoints: str | None,
    spark_conf: Path | None,
    catalog: str | None,
    once: bool,
) -> None:
    """Run the Spark job that writes logs to Delta tables, in the foreground, until SIGTERM.

    --log may also be several names and patterns, separated by commas: a log that is created later and
    matches is written too.

    --give-up-s applies while no node answers. A job at its start, and one with --once, then ends with an
    error; a running job tries again until a node answers.

    \b
    Examples:
      commitlog materialize --once --tables commitlog-data/tables --log orders
      commitlog materialize --log '*'
      commitlog materialize --spark-conf conf/spark.toml
      commitlog materialize --catalog orders_cat.stream
    """
    if spark_conf is None:
        tables, checkpoints = tables or str(DEFAULT_TABLES), checkpoints or str(DEFAULT_CHECKPOINTS)
    arguments = job_arguments(target.endpoints_of_job(), target.log, tables, checkpoints)
    if spark_conf is not None:
        arguments += ["--conf", str(spark_conf)]
    arguments += ["--give-up-s", str(target.give_up_s)]
    if catalog is not None:
        arguments += ["--catalog", catalog]
    if once:
        arguments.append("--available-now")
    if target.as_json:
        arguments.append("--json")
    become_job(JOB, arguments, target.token)
