"""Kafka -> Spark -> Delta against commitlog -> Spark -> Delta: one run, one machine, the same Spark.

`python -m tests.bench.kafka [--records 1000000] [--passes 4]`: each system has three members on this machine,
replicates to three, and is alone on it: Kafka first, ended and removed, then ours. Each way has a Spark
driver of its own (`local[2]`), whose first pass is cold; every pass makes one micro-batch into a new table.
Kafka's drivers run on Spark's default JVM options, one of them on those of our session too, as all of ours.
Prints one JSON line a pass, and at the end the ratios of the medians. Needs Java and Maven, for Kafka's jars.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spark_jobs.session.java import JavaNotFound, find_java
from tests.bench.kafka.brokers import running_brokers
from tests.bench.kafka.maven import MavenFailed, jars_of
from tests.bench.spark.log_to_delta import RECORD_BYTES, fill
from tests.bench.systems.local_cluster import print_figure
from tests.bench.systems.memory import filled_page_cache
from tests.support.cluster import running
from tests.support.programs import run_program

HERE = Path(__file__).parent
GOAL = 1.3  # of Kafka's rows a second
WARM_RECORDS = 400_000  # the brokers' JVMs compile first: cold ones are several times slower
TOPIC = "records"
SPARKS_JAVA = (  # its defaults, in place of our session's
    "-XX:-UseParallelGC -XX:+UseG1GC -XX:NewSize=1m -XX:Tier3DelayOn=5 -XX:Tier4InvocationThreshold=5000 "
    "-XX:Tier4MinInvocationThreshold=600 -XX:Tier4CompileThreshold=15000 -XX:Tier4BackEdgeThreshold=40000"
)

# Tasks and JVM options: as many tasks as ours, its default of one, and with the options of our session.
OUR_JAVA = ""
KAFKA_WAYS = ((2, SPARKS_JAVA), (1, SPARKS_JAVA), (2, OUR_JAVA))


def passes(way: str, folder: Path, given: argparse.Namespace, *arguments: str) -> Iterator[dict[str, Any]]:
    """Run a Spark driver and return its figures, printed as they arrive. Raises CalledProcessError."""
    tables = folder / "tables"
    tables.mkdir(exist_ok=True)
    common = ["--folder", str(tables), "--records", str(given.records), "--passes", str(given.passes)]
    command = [sys.executable, "-m", "tests.bench.kafka.driver", way, *common, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        try:
            for line in driver.stdout:
                if line.startswith("{"):
                    figure = json.loads(line)
                    print_figure(**figure)
                    yield figure
        finally:
            driver.terminate()
    if driver.wait() != 0:
        raise subprocess.CalledProcessError(driver.returncode, command)


def of_kafka(given: argparse.Namespace) -> list[dict[str, Any]]:
    """All passes from a topic: KAFKA_WAYS."""
    jars, connector = jars_of(HERE / "brokers.xml"), jars_of(HERE / "connector.xml")
    with (
        tempfile.TemporaryDirectory(prefix="kafka-bench-") as folder,
        running_brokers(Path(folder), find_java(), jars) as brokers,
    ):
        brokers.create_topic("warm")
        warm = min(WARM_RECORDS, given.records)
        brokers.produce("warm", warm, RECORD_BYTES, "linger.ms=0")
        brokers.consume("warm", warm)
        brokers.delete_topic("warm")
        brokers.create_topic(TOPIC)
        produced = brokers.produce(TOPIC, given.records, RECORD_BYTES, "linger.ms=5", "batch.size=262144")
        assert brokers.end_offset(TOPIC) == given.records
        print_figure(figure="topic", brokers=3, records=given.records, producer=produced)
        source = ["--endpoint", brokers.bootstrap, "--topic", TOPIC, "--jars", *map(str, connector)]
        found = []
        for tasks, java in KAFKA_WAYS:
            found += passes("kafka", Path(folder), given, *source, "--tasks", str(tasks), f"--java={java}")
        return found


def of_commitlog(given: argparse.Namespace) -> list[dict[str, Any]]:
    """All passes from a log: over HTTP and in place, by the bare source and by the whole job."""
    with tempfile.TemporaryDirectory(prefix="commitlog-bench-") as folder, running(Path(folder)) as cluster:
        seconds = fill(cluster, given.records)
        cluster.wait_even()
        print_figure(
            figure="log", nodes=3, records=given.records, records_per_s=round(given.records / seconds)
        )
        source = ["--endpoint", ",".join(cluster.url(node) for node in cluster.ids), f"--java={given.java}"]
        in_place = ["--data-folders", ",".join(str(cluster.folder / node) for node in cluster.ids)]
        found = []
        for way in ("source", "job"):
            for where in ([], in_place):
                found += passes(way, Path(folder), given, *source, *where)
        return found


def rate(figures: list[dict[str, Any]], **wanted: object) -> float:
    """The median rate of the passes that are as wanted."""
    return statistics.median(
        figure["rows_per_s"]
        for figure in figures
        if all(figure[name] == value for name, value in wanted.items())
    )


def compare(kafka: list[dict[str, Any]], ours: list[dict[str, Any]]) -> None:
    """Ratios to the best of Kafka's ways on Spark's default JVM options, and to the one on ours."""
    for session in ("cold", "warm"):
        for way in ("source", "job"):
            for in_place in (False, True):
                found = rate(ours, session=session, way=way, in_place=in_place)
                rates = {java: 0.0 for _, java in KAFKA_WAYS}
                for tasks, java in KAFKA_WAYS:
                    rates[java] = max(rates[java], rate(kafka, session=session, tasks=tasks, java=java))
                print_figure(
                    figure="ratio",
                    session=session,
                    way=way,
                    in_place=in_place,
                    rows_per_s=round(found),
                    kafka_rows_per_s=round(rates[SPARKS_JAVA]),
                    ratio=round(found / rates[SPARKS_JAVA], 2),
                    goal=GOAL,
                    kafka_on_our_options_rows_per_s=round(rates[OUR_JAVA]),
                    ratio_on_our_options=round(found / rates[OUR_JAVA], 2),
                    systems="one after the other, alone on the machine",
                )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--passes", type=int, default=4, help="of each driver; the first is cold")
    parser.add_argument(
        "--java", default=OUR_JAVA, help="of our drivers: JVM options that win over the session's"
    )
    given = parser.parse_args()
    with filled_page_cache() as cache:
        try:
            kafka = of_kafka(given)
        except (JavaNotFound, MavenFailed) as error:
            sys.stderr.write(f"{error}\n")
            return 1
        cache.fill()
        compare(kafka, of_commitlog(given))
    return 0


if __name__ == "__main__":
    run_program(main)
