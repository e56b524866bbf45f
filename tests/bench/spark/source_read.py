"""Records per second that one task of the Spark source reads, without Spark: over HTTP, and in place.

`python -m tests.bench.spark.source_read [--records 200000]`: 1 KiB records, one node, one machine; prints one
JSON line a way, seconds of the clock and of the reader's processor.
"""

import argparse
import tempfile
import time
from pathlib import Path

from spark_jobs.source.options import parse_options
from spark_jobs.source.reading import RecordsPartition, read_records
from tests.bench.spark.log_to_delta import fill
from tests.bench.systems.local_cluster import print_figure
from tests.support.cluster import running
from tests.support.programs import run_program

ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    records = parser.parse_args().records
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), 1) as cluster:
        fill(cluster, records)
        endpoint = {"endpoint": cluster.url("n1")}
        ways = {"http": endpoint, "in place": {**endpoint, "dataFolder": str(cluster.folder / "n1")}}
        for round_number in range(1, ROUNDS + 1):
            for way, given in ways.items():
                options = parse_options(given)
                partition = RecordsPartition(0, cluster.status("n1")["end_index"] + 1, options.endpoints)
                started, busy = time.perf_counter(), time.process_time()
                rows = sum(batch.num_rows for batch in read_records(options, partition))
                seconds = time.perf_counter() - started
                print_figure(
                    figure="source read",
                    way=way,
                    round=round_number,
                    rows=rows,
                    seconds=round(seconds, 2),
                    processor_s=round(time.process_time() - busy, 2),
                    records_per_s=round(rows / seconds),
                )


if __name__ == "__main__":
    run_program(main)
