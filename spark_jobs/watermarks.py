"""The table `watermarks`: what each leader knew of its peers, event by event (D-22)."""

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.journal_table import JournalTable
from spark_jobs.tables import WATERMARKS
from spark_jobs.transforms import watermarks


class WatermarksTable(JournalTable):
    """History by term and peer; `transforms.latest_watermarks` is its newest state."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        super().__init__(spark, path, WATERMARKS)

    def append_from(self, events: DataFrame) -> None:
        """Add the rows that a range of events tells. The table's own positions leave out what it has."""
        self.append(watermarks(events).toArrow())
