"""Kafka's producer, consumer and synchronous sends beside this project, in alternating turns of one run.

    python -m tests.bench.kafka.rates [--turns 5] [--records 1000000] [--seconds 3]

Both clusters have three members on this machine, records of 1 KiB, and run at the same time; one load runs at
a time. Prints one JSON line a figure, and at the end one a row: medians, ranges, the ratio of the medians.
Needs Go, and for Kafka a JDK and Maven.

    produce   batches of 100, 8 in flight, to a log with `durability: replicated`; ProducerPerformance with
              acks=all, linger.ms=5, batch.size=262144, whose brokers do not fsync
    consume   --records records by one process: into Arrow; ConsumerPerformance, without the time to join
    sync-1    one record in flight, fsync before the answer (Kafka: flush.messages=1); ratio of the p50
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.client import CommitlogClient
from spark_jobs.session.java import JavaNotFound, find_java
from tests.bench.compare import CONTENT_TYPES, bodies
from tests.bench.kafka.brokers import Brokers, running_brokers
from tests.bench.kafka.maven import MavenFailed, jars_of
from tests.bench.rest_append import BATCH_RECORDS, RECORD_BYTES, build_loadgen
from tests.bench.systems.local_cluster import print_figure
from tests.bench.systems.memory import filled_page_cache
from tests.support.cluster import Cluster, running
from tests.support.programs import run_program

Figure = dict[str, float]
FAST = ("linger.ms=5", "batch.size=262144")
LOG = "replicated"
WARM_RECORDS = 200_000
WARM_S = 3.0


class Kafka:
    """Loads on the brokers. `bulk` has the records that are read."""

    def __init__(self, brokers: Brokers, records: int, seconds: float) -> None:
        self._brokers, self._records, self._seconds = brokers, records, seconds
        brokers.create_topic("bulk")
        brokers.create_topic("produced")
        brokers.create_topic("synced", "flush.messages=1")
        brokers.produce("bulk", records, RECORD_BYTES, *FAST)
        brokers.consume("bulk", records)

    def produce(self) -> Figure:
        count = WARM_RECORDS + self._records // 2
        report = self._brokers.produce("produced", count, RECORD_BYTES, *FAST, warm_up_records=WARM_RECORDS)
        return {"records_per_s": float(report.split(" records/sec")[0].rsplit(" ", 1)[1])}

    def consume(self) -> Figure:
        return {"records_per_s": self._brokers.consume("bulk", self._records)}

    def sync_1(self) -> Figure:
        return self._brokers.send_one_by_one("synced", RECORD_BYTES, WARM_S, self._seconds)


class ThisProject:
    """Loads on the nodes. The log `default` has fsync, LOG does not and has the records that are read."""

    def __init__(self, cluster: Cluster, folder: Path, records: int, seconds: float) -> None:
        self._records, self._seconds = records, seconds
        self._loadgen, self._files = str(build_loadgen(folder)), bodies(folder)
        self._urls = {log: cluster.url(cluster.leader(log)) for log in ("default", LOG)}
        self._batches("packed", "-n", str(records // BATCH_RECORDS))

    def _load(self, log: str, *arguments: str) -> Figure:
        url = f"{self._urls[log]}/v1/logs/{log}/records"
        command = [self._loadgen, "-warmup", "0s", "-url", url, *arguments]
        found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        return {name: found[name] for name in ("records_per_s", "p50_ms", "p99_ms")}

    def _batches(self, kind: str, *until: str) -> Figure:
        body = ("-body-file", str(self._files[kind]), "-content-type", CONTENT_TYPES[kind])
        return self._load(LOG, "-c", "8", *body, "-records", str(BATCH_RECORDS), *until)

    def produce(self, kind: str) -> Figure:
        return self._batches(kind, "-d", f"{self._seconds}s")

    def consume(self) -> Figure:
        url, count = self._urls[LOG], 0
        began = time.monotonic()
        with CommitlogClient(url, log=LOG) as client:
            for table, _, _ in client.arrow_pages(0, most=self._records, endpoint=url):
                count += table.num_rows
        return {"records_per_s": count / (time.monotonic() - began)}

    def sync_1(self) -> Figure:
        return self._load("default", "-c", "1", "-size", str(RECORD_BYTES), "-d", f"{self._seconds}s")


def summary(figures: dict[str, list[Figure]], ours: str, theirs: str, of: str) -> dict[str, Any]:
    """Return medians and ranges of a row, and the ratio of this project to Kafka, above 1 if it is better."""
    found: dict[str, Any] = {}
    for name in (ours, theirs):
        values = [figure[of] for figure in figures[name]]
        found[name] = {of: round(statistics.median(values), 3), "range": [min(values), max(values)]}
    ratio = found[ours][of] / found[theirs][of]
    return {**found, "ratio": round(1 / ratio if of == "p50_ms" else ratio, 2)}


def measure(turns: int, records: int, seconds: float) -> None:
    """Measure all rows and print them. Raises JavaNotFound, MavenFailed."""
    jars, java = jars_of(Path(__file__).parent / "brokers.xml"), find_java()
    figures: dict[str, list[Figure]] = defaultdict(list)
    logs = ({"name": "default"}, {"name": LOG, "durability": "replicated"})
    with (
        tempfile.TemporaryDirectory(prefix="kafka-bench-") as theirs,
        tempfile.TemporaryDirectory(prefix="commitlog-bench-") as ours,
        running(Path(ours), logs=logs) as cluster,
        running_brokers(Path(theirs), java, jars) as brokers,
        filled_page_cache() as cache,
    ):
        kafka = Kafka(brokers, records, seconds)
        project = ThisProject(cluster, Path(ours), records, seconds)
        loads: dict[str, Callable[[], Figure]] = {
            "consume": project.consume,
            "kafka consume": kafka.consume,
            "produce packed": lambda: project.produce("packed"),
            "kafka produce": kafka.produce,
            "produce ndjson": lambda: project.produce("ndjson"),
            "sync-1": project.sync_1,
            "kafka sync-1": kafka.sync_1,
        }
        for turn in range(turns):
            for name, load in loads.items():
                cache.fill()
                figures[name].append(load())
                print_figure(load=name, turn=turn, **figures[name][-1])
    rows = (
        ("consume", "kafka consume", "records_per_s"),
        ("produce packed", "kafka produce", "records_per_s"),
        ("produce ndjson", "kafka produce", "records_per_s"),
        ("sync-1", "kafka sync-1", "p50_ms"),
    )
    for name, other, of in rows:
        print_figure(row=name, **summary(figures, name, other, of))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    try:
        measure(options.turns, options.records, options.seconds)
    except (JavaNotFound, MavenFailed) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    run_program(main)
