"""Options of the commands that become a Spark job."""

from pathlib import Path

import click

from app.local.spark_job import DEFAULT_TABLES

tables_option = click.option(
    "--tables",
    envvar="COMMITLOG_TABLES",
    show_envvar=True,
    help=f"Folder or URL of the Delta tables.  [default: {DEFAULT_TABLES}]",
)
spark_conf_option = click.option(
    "--spark-conf",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    envvar="COMMITLOG_SPARK_CONF",
    show_envvar=True,
    help="Settings file of Spark, also with the default of --tables; see conf/spark.toml.",
)
