"""Configuration of a job that materializes logs."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from app.durations import parse_duration
from app.errors import ConfigError
from app.tables.names import PROGRESS_FILE
from spark_jobs.materialize.lease import MOVE_EACH_S
from spark_jobs.session.locations import is_url, location
from spark_jobs.session.settings import SparkSettings
from spark_jobs.source.log_reads import GIVE_UP_S
from spark_jobs.source.options import parse_endpoints, parse_seconds
from spark_jobs.tables.catalog import parse_catalog

TRIGGER = "750 milliseconds"  # half of it, a check of the ends and a commit are within 0.6 s
MIN_RECORDS = 100  # of a batch; fewer may wait for more
MAX_DELAY = "2s"  # with the trigger, and a check and a commit, a record of a trickle is seen within 3 s
_UNIT_NAME = re.compile(r"(millisecond|second|minute|hour)s?$")
_UNITS = {"millisecond": "ms", "second": "s", "minute": "m", "hour": "h"}


@dataclass(frozen=True, kw_only=True)
class MaterializeConfig:
    """Logs to materialize, destination and intervals.

    endpoint: base URLs of replicas, comma-separated. tables: folder or URL with one folder per log. logs:
    names, and patterns such as `orders-*`. checkpoints: folder of the driver for the scratch folders of the
    query, None for the place of temporary files; the tables alone record the progress. available_now: end
    when everything that was committed at the start is in the tables. trigger, events_trigger: least time
    between two batches of a log, such as `1 second`. max_records_per_trigger: of one log.
    max_records_per_partition: of one task of a large batch, which writes one file. min_records_per_trigger,
    max_trigger_delay: as the options of the source, so that a steady trickle costs few commits and files.
    give_up_s: time for which nodes that do not answer are retried; a job that follows then starts again.
    cursor_each_s: least time between two moves of the log's cursor, each a record of the log; with
    available_now each commit moves it. data_folders: of nodes on this machine, read in place. progress: a
    JSON file kept up to date, None for `progress.json` beside the tables; jobs in one folder of tables each
    need their own, or the file has the logs of the last one to write. as_json: output format of `main`.
    spark: where it runs. catalog: `CATALOG` or `CATALOG.SCHEMA` in which the tables have names, None for
    none. single_driver: no other driver writes these tables, so their store need not refuse a second commit
    of one version. change_data_feed: of `current`, from now on; once set, it stays.
    """

    endpoint: str
    tables: Path | str
    logs: tuple[str, ...] = ("default",)
    token: str | None = None
    checkpoints: Path | None = None
    available_now: bool = False
    trigger: str = TRIGGER
    events_trigger: str = "10 seconds"
    max_records_per_trigger: int = 1_000_000
    max_records_per_partition: int = 100_000
    min_records_per_trigger: int = MIN_RECORDS
    max_trigger_delay: str = MAX_DELAY
    give_up_s: float = GIVE_UP_S
    cursor_each_s: float = MOVE_EACH_S
    data_folders: tuple[str, ...] = ()
    progress: Path | None = None
    as_json: bool = False
    spark: SparkSettings = field(default_factory=SparkSettings)
    catalog: str | None = None
    single_driver: bool = False
    change_data_feed: bool = False

    def __post_init__(self) -> None:
        if is_url(self.tables_root) and self.progress is None:
            raise ConfigError("progress: set a path; it is required if the tables are at a URL")
        if self.checkpoints is not None and is_url(str(self.checkpoints)):
            raise ConfigError(f"checkpoints: {self.checkpoints} must be a folder of the driver, not a URL")
        if self.catalog is not None:
            parse_catalog(self.catalog)
        interval_s("trigger", self.trigger)
        interval_s("events_trigger", self.events_trigger)
        parse_seconds("max_trigger_delay", self.max_trigger_delay)

    @property
    def endpoints(self) -> tuple[str, ...]:
        return parse_endpoints(self.endpoint)

    @property
    def tables_root(self) -> str:
        return location(str(self.tables))

    @property
    def progress_file(self) -> Path:
        return self.progress or Path(self.tables_root) / PROGRESS_FILE

    @property
    def trigger_s(self) -> float:
        return interval_s("trigger", self.trigger)

    @property
    def events_trigger_s(self) -> float:
        return interval_s("events_trigger", self.events_trigger)

    @property
    def max_delay_s(self) -> float:
        return parse_seconds("max_trigger_delay", self.max_trigger_delay)


def interval_s(name: str, text: str) -> float:
    """Return an interval such as `1 second` or `200 milliseconds` in seconds. Raises ConfigError."""
    try:
        return parse_duration(_UNIT_NAME.sub(lambda unit: _UNITS[unit[1]], text.strip().lower()))
    except ValueError:
        raise ConfigError(
            f"{name} must be an interval such as '1 second' or '200 milliseconds', got {text!r}"
        ) from None
