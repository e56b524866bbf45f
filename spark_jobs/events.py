"""The tables `events` and `watermarks`, from one stream of the nodes' journals.

`watermarks` is written first, so whatever `events` holds is in both: the stream begins where `events` ends.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark_jobs import schemas
from spark_jobs.journal_table import JournalTable
from spark_jobs.planning import EARLIEST
from spark_jobs.tables import EVENTS
from spark_jobs.watermarks import WatermarksTable

MAX_EVENTS_PER_TRIGGER = 50_000


class EventsJob:
    """Fills one log's `events` and `watermarks`, one micro-batch at a time; other drivers may do the same."""

    name = "events"

    def __init__(
        self, spark: SparkSession, events_path: str, watermarks_path: str, options: Mapping[str, str]
    ) -> None:
        """options: of the source, all but which stream and where it is to begin."""
        self.spark = spark
        self.options = options
        self.events = JournalTable(spark, events_path, EVENTS)
        self.watermarks = WatermarksTable(spark, watermarks_path)

    def stream(self, checkpoint: Path) -> DataFrame:
        """The events after the table's last ones. The rows themselves tell how far a micro-batch goes."""
        self.events.open()
        self.watermarks.open()
        start = json.dumps(self.events.positions) if self.events.positions else EARLIEST
        reader = self.spark.readStream.format("commitlog").options(**self.options).option("stream", "events")
        return reader.options(startingIndex=start, maxRecordsPerTrigger=MAX_EVENTS_PER_TRIGGER).load()

    def write(self, events: DataFrame, batch_id: int) -> None:
        """Bring both tables up to the end of a micro-batch, which is small: the option limits it."""
        rows = events.toArrow()
        self.watermarks.append_from(self.spark.createDataFrame(rows, schemas.EVENTS))
        self.events.append(rows)
