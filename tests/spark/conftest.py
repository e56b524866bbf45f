"""One Spark session for all tests, and replicas that a test can command."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.readwriter import DataFrameReader
from pyspark.sql.streaming.readwriter import DataStreamReader

from spark_jobs.source import CommitlogDataSource
from tests.spark.fast import fast_session
from tests.spark.source.log_server import FakeLog, FakeReplica
from tests.support.cluster import Cluster, running


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = fast_session("tests")
    session.dataSource.register(CommitlogDataSource)
    yield session
    session.stop()


LOGS = (
    "batches",
    "named",
    "killed",
    "in-place",
    "many-a",
    "many-b",
    "on-cluster",
    "from-cluster",
    "connected",
    "from-connected",
    "piped",
)


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real node, for what a stand-in cannot show; each test that writes has a log of its own."""
    logs = tuple({"name": name, "replicas": ["n1"]} for name in LOGS)
    with running(tmp_path_factory.mktemp("service"), 1, logs=logs) as cluster:
        cluster.leader()
        yield cluster


@pytest.fixture
def log() -> FakeLog:
    """Two terms: control records at 0 and 51, data between and after, 100 of them."""
    log = FakeLog()
    log.open_term(1, "n1")
    log.append_many(50)
    log.open_term(2, "n2")
    log.append_many(50)
    return log


@pytest.fixture
def replicas(log: FakeLog) -> Iterator[list[FakeReplica]]:
    replicas = [FakeReplica(log, "n1"), FakeReplica(log, "n2")]
    for replica in replicas:
        replica.peers = replicas
        replica.start()
    yield replicas
    for replica in replicas:
        replica.resume.set()
        replica.stop()


def endpoints(replicas: Sequence[FakeReplica]) -> str:
    return ",".join(replica.url for replica in replicas)


Batch = Callable[..., DataFrameReader]
Stream = Callable[..., DataStreamReader]


@pytest.fixture
def batch(spark: SparkSession, replicas: list[FakeReplica]) -> Batch:
    """A reader of the log with the options given."""

    def reader(**options: object) -> DataFrameReader:
        return spark.read.format("commitlog").options(**{"endpoint": endpoints(replicas), **options})

    return reader


@pytest.fixture
def stream(spark: SparkSession, replicas: list[FakeReplica]) -> Stream:
    """A streaming reader of the log with the options given."""

    def reader(**options: object) -> DataStreamReader:
        return spark.readStream.format("commitlog").options(**{"endpoint": endpoints(replicas), **options})

    return reader


class Collected:
    """A sink that keeps what a stream brought, micro-batch by micro-batch."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.batches: list[list[int]] = []

    def __call__(self, rows: object, batch_id: int) -> None:
        column = "index" if "index" in rows.columns else "seq"  # type: ignore[attr-defined]
        self.batches.append(sorted(row[0] for row in rows.select(column).collect()))  # type: ignore[attr-defined]

    def run(self, reader: DataStreamReader) -> list[list[int]]:
        """Run the stream to the end of what is there; the batches that came now."""
        self.batches = []
        writer = (
            reader.load().writeStream.foreachBatch(self).option("checkpointLocation", str(self.checkpoint))
        )
        writer.trigger(availableNow=True).start().awaitTermination()
        return self.batches


@pytest.fixture
def collected(tmp_path: Path) -> Collected:
    return Collected(tmp_path / "checkpoint")
