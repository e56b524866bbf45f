"""Settings of the jobs about Spark's machine or cluster, from conf/spark.toml.

    [session]    where Spark runs, and what it may use: fields of SessionSettings
    [locations]  where the tables are, and scratch: fields of Locations
    [conf]       any other setting of Spark, by its name in quotes

Every job takes `--conf FILE`; without it, the file that COMMITLOG_SPARK_CONF names; without that, the
defaults below. Options on the command line take precedence. Relative paths are relative to the file. Unknown
names are refused.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar

import click
from pydantic import ConfigDict

from app.durations import Seconds
from app.errors import ConfigError, check
from app.settings.toml import load_toml, validated
from spark_jobs.session.jars import DEFAULT_JARS_FOLDER
from spark_jobs.session.locations import location

VARIABLE = "COMMITLOG_SPARK_CONF"
MASTER = re.compile(r"local(\[(\*|\d+)(,\d+)?\])?|spark://[^,/\s]+:\d+(,[^,/\s]+:\d+)*|yarn|k8s://\S+")
REMOTE = re.compile(r"sc://\S+")
MEMORY = re.compile(r"[1-9]\d*[kmgt]b?", re.IGNORECASE)
FILE = ConfigDict(extra="forbid", strict=True)
_UNQUOTED = 'conf: put names in quotes, as in "spark.sql.ansi.enabled" = true'
CommandFunction = TypeVar("CommandFunction", bound=Callable[..., Any])
SPARK_NAMES = {
    "driver_memory": "spark.driver.memory",
    "driver_host": "spark.driver.host",
    "executor_memory": "spark.executor.memory",
    "executor_cores": "spark.executor.cores",
    "cores": "spark.cores.max",
    "shuffle_partitions": "spark.sql.shuffle.partitions",
}


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """Environment and resources of Spark. Raises ConfigError for malformed values."""

    master: str = "local[2]"
    """Master of Spark: `local[N]`, `spark://HOST:PORT`, `yarn` or `k8s://...`."""
    remote: str | None = None
    """Server of Spark Connect, `sc://HOST:PORT`, instead of `master`; it has its own memory, cores and
    jars."""
    driver_memory: str = "2g"
    """Memory of the driver as Java writes it, such as `2g`."""
    driver_host: str | None = None
    """Host under which executors reach the driver; absent: loopback for a local master, else Spark's
    choice."""
    executor_memory: str | None = None
    """Memory of one executor as Java writes it; absent: Spark's default."""
    executor_cores: int | None = None
    """Cores of one executor; absent: Spark's default."""
    cores: int | None = None
    """Cores of the whole cluster; absent: all."""
    shuffle_partitions: int = 4
    """Partitions of a shuffle."""
    jars: Path = DEFAULT_JARS_FOLDER
    """Folder of the jars of Delta and of this project; relative to the file."""
    __pydantic_config__: ClassVar = FILE

    def __post_init__(self) -> None:
        check(
            MASTER.fullmatch(self.master) is not None,
            f"master must be local[N], spark://HOST:PORT, yarn or k8s://..., got {self.master!r}",
        )
        check(
            self.remote is None or REMOTE.fullmatch(self.remote) is not None,
            f"remote must be sc://HOST:PORT, got {self.remote!r}",
        )
        for name in ("driver_memory", "executor_memory"):
            value = getattr(self, name)
            check(
                value is None or MEMORY.fullmatch(value) is not None,
                f"{name} must be a size such as 2g, got {value!r}",
            )
        for name in ("executor_cores", "cores", "shuffle_partitions"):
            value = getattr(self, name)
            check(value is None or value > 0, f"{name} must be positive, got {value}")

    @property
    def is_local(self) -> bool:
        return self.master.startswith("local")

    def spark_settings(self) -> dict[str, str]:
        """Return the same under Spark's names; without those that are None."""
        settings = {spark_name: getattr(self, name) for name, spark_name in SPARK_NAMES.items()}
        return {name: str(value) for name, value in settings.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Locations:
    """Folders that driver and executors reach under one name. Relative paths are relative to the file."""

    tables: str | None = None
    """Folder or URL of the Delta tables, with one folder for each log; absent: the command line names it."""
    checkpoints: Path | None = None
    """Folder for the checkpoints of a job's streaming query; the tables alone record the progress."""
    __pydantic_config__: ClassVar = FILE


@dataclass(frozen=True, kw_only=True)
class SparkSettings:
    """Content of the file. conf: other settings of Spark, by name; they override those of the jobs."""

    session: SessionSettings = field(default_factory=SessionSettings)
    locations: Locations = field(default_factory=Locations)
    conf: Mapping[str, str] = field(default_factory=dict)
    __pydantic_config__: ClassVar = FILE

    def __post_init__(self) -> None:
        in_session = {*SPARK_NAMES.values(), "spark.master", "spark.jars"}
        for name in self.conf:
            check(
                name.startswith("spark."),
                f"conf: {name!r} is not a setting of Spark; names start with 'spark.'",
            )
            check(name not in in_session, f"conf: {name} is set by [session]; remove it from [conf]")


def load(path: Path) -> SparkSettings:
    """Read and check a file. Raises ConfigError with every complaint, each led by its place in the file."""
    return load_toml(path, lambda document: parse(document, path.resolve().parent))


def parse(document: Mapping[str, Any], folder: Path) -> SparkSettings:
    """As `load`, from the parsed TOML. folder: base of relative paths."""
    document = dict(document)
    if isinstance(document.get("conf"), dict):
        document["conf"] = {name: _text(value) for name, value in document["conf"].items()}
        check(not isinstance(document["conf"].get("spark"), dict), _UNQUOTED)
    settings = validated(SparkSettings, document)
    named = document.get("session", {})
    check(not {"master", "remote"} <= set(named), "session: master and remote cannot be used together")
    session, places = settings.session, settings.locations
    return replace(
        settings,
        session=replace(session, jars=(folder / session.jars).resolve()),
        locations=Locations(
            tables=None if places.tables is None else location(places.tables, folder),
            checkpoints=None if places.checkpoints is None else folder / places.checkpoints,
        ),
    )


# Options that several jobs have.
tables_option = click.option(
    "--tables",
    metavar="DIR",
    help="Folder or URL of the tables, one folder per log.  [default: locations.tables of --conf]",
)
logs_option = click.option(
    "--log",
    multiple=True,
    help="Names and patterns such as 'orders-*', comma-separated; may be repeated.  [default: default]",
)
token_option = click.option(
    "--token", envvar="COMMITLOG_TOKEN", show_envvar=True, help="Bearer token of the service."
)


def give_up_option(default_s: float) -> Callable[[CommandFunction], CommandFunction]:
    """Return the option --give-up-s of a job about the service."""
    return click.option(
        "--give-up-s",
        type=Seconds(),
        default=default_s,
        show_default=True,
        help="Time limit for retries while no node answers, seconds.",
    )


def spark_options(command: CommandFunction) -> CommandFunction:
    """Add the options of every job about Spark."""
    for option in (
        click.option("--jars", type=click.Path(path_type=Path), help="Folder of Delta's jars and ours."),
        click.option("--remote", help="Address of a Spark Connect server, sc://HOST:PORT."),
        click.option("--master", help="Address of the Spark master, or local[N]."),
        click.option(
            "--conf",
            type=click.Path(path_type=Path),
            envvar=VARIABLE,
            show_envvar=True,
            help="Settings file, see conf/spark.toml.",
        ),
    ):
        command = option(command)
    return command


def given_options(command: click.Command, module: str, arguments: Sequence[str] | None) -> SimpleNamespace:
    """Return the options of `command` by name. arguments: None for those of the process.

    Ends the process with exit code 2 for arguments that the command does not take, and 0 after --help.
    """
    try:
        found = command.main(
            None if arguments is None else list(arguments),
            prog_name=f"python -m {module}",
            standalone_mode=False,
        )
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    if not isinstance(found, SimpleNamespace):  # --help was printed
        sys.exit(found)
    return found


def tables_of(given: SimpleNamespace, settings: SparkSettings) -> str:
    """Return the folder or URL of the tables, from `tables_option` or the file. Raises ConfigError."""
    tables: str | None = given.tables or settings.locations.tables
    if tables is None:
        raise ConfigError("set --tables, or locations.tables in the --conf file")
    return tables


def settings_of(given: SimpleNamespace, *, master: str = "local[2]") -> SparkSettings:
    """Return the settings of these arguments. master: the default. Raises ConfigError."""
    settings = SparkSettings() if given.conf is None else load(given.conf)
    check(not (given.master and given.remote), "--master and --remote cannot be used together")
    options = {field.name: getattr(given, field.name, None) for field in fields(SessionSettings)}
    changes: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if given.master:
        changes["remote"] = None
    if given.conf is None:
        changes = {"master": master, **changes}
    return replace(settings, session=replace(settings.session, **changes))


def _text(value: object) -> object:
    """Return TOML's booleans and numbers as Spark writes them."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value
