"""Build files that Spark can distribute: `python -m spark_jobs.package FOLDER [--conf FILE]`.

FOLDER/commitlog.zip     all code of this package, for `spark-submit --py-files`
FOLDER/spark.properties  settings of conf/spark.toml and of the jobs, for `spark-submit --properties-file`

A driver that starts Spark itself sends its executors the same archive (session/archive.py).
"""

import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

from app.errors import ConfigError
from app.extras import imports_of_extra

with imports_of_extra("spark", __name__):
    from spark_jobs.session.spark_session import launch_settings, with_extra

from spark_jobs.session.archive import make_zip
from spark_jobs.session.jars import JarsUnavailable, ensure_jars
from spark_jobs.session.java import JavaNotFound, find_java
from spark_jobs.session.settings import given_options, settings_of, spark_options

ZIP_NAME = "commitlog.zip"
PROPERTIES_NAME = "spark.properties"


def properties(settings: dict[str, str]) -> str:
    """Return Spark's settings as a Java properties file."""
    lines = [f"{name}={value.replace(chr(92), chr(92) * 2)}\n" for name, value in sorted(settings.items())]
    return "".join(lines)


@click.command(
    epilog="\b\nExample:\n  python -m spark_jobs.package dist --conf conf/spark.toml --master spark://host:7077"
)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@spark_options
def options(**given: Any) -> SimpleNamespace:
    """Build the files that spark-submit needs in FOLDER, and print its command line."""
    return SimpleNamespace(**given)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write both files, and print how to use them. Exit code 2 for an invalid configuration."""
    given = given_options(options, "spark_jobs.package", arguments)
    try:
        settings = settings_of(given)
        session = settings.session
        ensure_jars(session.jars)
        launch = launch_settings(
            session.jars.resolve(), is_local=session.is_local, driver_memory=session.driver_memory
        )
        java_home = find_java().parent.parent
    except (ConfigError, JarsUnavailable, JavaNotFound) as error:
        sys.stderr.write(f"{error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    own = {"spark.master": session.master, "spark.pyspark.python": sys.executable}
    archive = given.folder.resolve() / ZIP_NAME
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        make_zip(Path(folder)).replace(archive)
    written = given.folder.resolve() / PROPERTIES_NAME
    written.write_text(
        properties(with_extra({**launch, **own, **session.spark_settings()}, settings.conf)), "utf-8"
    )
    program = Path(__file__).resolve().with_name("run.py")
    submit = ["spark-submit", "--properties-file", str(written), "--py-files", str(archive), str(program)]
    sys.stdout.write(
        f"JAVA_HOME={shlex.quote(str(java_home))} {shlex.join(submit)} --endpoint URLS --tables LOCATION\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
