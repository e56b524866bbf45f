"""Appends per second through REST: single records with 1, 64 and 256 requests in flight, and batches of 100.

`python -m tests.bench.rest_append [--nodes 3] [--seconds 8] [--repetitions 3]` prints one JSON line a figure.
Needs Go to build the load generator (tests/bench/loadgen).
"""

import argparse
import json
import subprocess
import tempfile
import urllib.request
from pathlib import Path

import pyarrow as pa

from tests.bench.systems.local_cluster import print_figure, running_cluster
from tests.support.programs import run_program

LOADGEN = Path(__file__).parent / "loadgen"
RECORD_BYTES = 1024
BATCH_RECORDS = 100


def build_loadgen(folder: Path) -> Path:
    binary = folder / "loadgen"
    subprocess.run(["go", "build", "-o", str(binary), "."], cwd=LOADGEN, check=True)
    return binary


def arrow_body(folder: Path) -> Path:
    """A request of BATCH_RECORDS records of RECORD_BYTES as an Arrow stream."""
    batch = pa.record_batch({"value": pa.array([b"v" * RECORD_BYTES] * BATCH_RECORDS, pa.binary())})
    path = folder / "batch.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return path


def leader_first(urls: list[str]) -> list[str]:
    """The leader's URL alone: the load goes to it, as a client that follows `Commitlog-Leader` would do."""
    with urllib.request.urlopen(f"{urls[0]}/v1/logs/default/tail") as answer:
        return [answer.headers["Commitlog-Leader"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--port", type=int, default=28101)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="commitlog-bench-") as scratch:
        loadgen = build_loadgen(Path(scratch))
        batch = arrow_body(Path(scratch))
        with running_cluster(options.nodes, options.port) as (_, urls):
            target = ",".join(f"{url}/v1/logs/default/records" for url in leader_first(urls))
            singles = [
                (f"1 record, {c} in flight", ["-c", str(c), "-size", str(RECORD_BYTES)]) for c in (1, 64, 256)
            ]
            arrow = ["-body-file", str(batch), "-content-type", "application/vnd.apache.arrow.stream"]
            batched = [
                ("100 records as Arrow, 8 in flight", ["-c", "8", *arrow, "-records", str(BATCH_RECORDS)])
            ]
            for repetition in range(options.repetitions):
                for name, arguments in singles + batched:
                    command = [str(loadgen), "-url", target, *arguments, "-d", f"{options.seconds}s"]
                    run = subprocess.run(command, capture_output=True, check=True)
                    print_figure(
                        workload=name, nodes=options.nodes, repetition=repetition, **json.loads(run.stdout)
                    )


if __name__ == "__main__":
    run_program(main)
