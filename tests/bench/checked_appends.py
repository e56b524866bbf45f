"""Cost of a schema that rejects what does not match, for the throughput of appends of 100 records as NDJSON.

    python -m tests.bench.checked_appends [--nodes 3] [--turns 5] [--seconds 3]

Two kinds of records: the flights of the demo (300 bytes, 19 fields), and objects of 1 KiB with 5 fields. Each
kind goes to a log without a schema and to one with it, by alternating turns, 8 requests in flight. One JSON
line for each kind: records per second of both, medians, and `cost`, the share that the check takes. Needs Go.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

from app.client import CommitlogClient
from app.client.operations import Operations
from app.schemas import propose
from tests.bench.loop_cost import SCHEMA, objects
from tests.bench.rest_append import BATCH_RECORDS, build_loadgen
from tests.bench.spark.typed_tables import flights
from tests.bench.systems.local_cluster import print_figure
from tests.support.cluster import running
from tests.support.programs import run_program

SAMPLE = 5_000
IN_FLIGHT = 8


def kinds() -> dict[str, tuple[bytes, str]]:
    """Return the body of a request and the schema of each kind."""
    _, values = flights(SAMPLE)
    lines = [json.dumps({"value": value.decode()}).encode() for value in values[:BATCH_RECORDS]]
    return {
        "flights": (b"\n".join(lines), propose(values).definition),
        "objects": (objects(), SCHEMA.definition),
    }


def rate(loadgen: Path, url: str, body: Path, seconds: int) -> float:
    command = [str(loadgen), "-url", url, "-c", str(IN_FLIGHT), "-d", f"{seconds}s", "-body-file", str(body)]
    command += ["-content-type", "application/x-ndjson", "-records", str(BATCH_RECORDS)]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert found["status"].keys() == {"200"}, found
    return float(found["records_per_s"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="commitlog-bench-") as name:
        folder = Path(name)
        loadgen = build_loadgen(folder)
        with running(folder, options.nodes) as cluster:
            operations = Operations(CommitlogClient([cluster.url(cluster.leader())]))
            for kind, (body, definition) in kinds().items():
                (folder / kind).write_bytes(body)
                targets = []
                for log in (f"{kind}-plain", f"{kind}-checked"):
                    operations.create_log({"name": log})
                    targets.append(f"{cluster.url(cluster.leader(log))}/v1/logs/{log}/records")
                checked = CommitlogClient([cluster.url(cluster.leader(log))], log=log)
                checked.put_schema(definition=definition, format="json", on_invalid="reject")
                found = defaultdict(list)
                for _ in range(options.turns):
                    for url in targets:
                        found[url].append(rate(loadgen, url, folder / kind, options.seconds))
                plain, held = (statistics.median(found[url]) for url in targets)
                print_figure(
                    figure=kind,
                    nodes=options.nodes,
                    plain_per_s=round(plain),
                    checked_per_s=round(held),
                    cost=round(1 - held / plain, 2),
                    goal=0.15,
                )


if __name__ == "__main__":
    run_program(main)
