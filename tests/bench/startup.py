"""Does a log of 10 GiB start as fast as one of 10 MiB? One JSON line a size, and one for their ratio.

`python -m tests.bench.startup [--large-gib 10] [--runs 6] [--folder DIR]`. Each size is a node of its own
whose log the storage layer made. After a first start (which settles what the making left open) and a clean
stop, each run drops the log's pages from the page cache and measures, in turns of both sizes, the opening of
the log alone and the time from the start of the process to /readyz. Every second start follows a kill -9.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from storage.files import OsFileSystem
from storage.format.batch import log_id_of, stamp
from storage.format.records import RecordColumns, encode_body
from storage.log.checkpoint import Checkpoint, CheckpointFile
from storage.log.commitlog import Commitlog
from storage.log.hard_state import HardState, HardStateFile
from tests.bench.systems.local_cluster import print_figure
from tests.support.cluster import Cluster, eventually
from tests.support.programs import run_program

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
RECORDS_A_BATCH, RECORD_BYTES = 64, KIB
SYNC_EACH_BYTES = 256 * MIB
FIRST_START_S = 600.0  # it reads the whole log once: a log made like this has no snapshot of its state yet
SMALL_BYTES = 10 * MIB
SECTIONS = {
    "raft": {"election_timeout_ms": [200, 210], "heartbeat_interval_ms": 50}
}  # nearly no chance in it


def log_folder(cluster: Cluster) -> Path:
    return cluster.folder / "n1" / "logs" / "default"


def make_log(cluster: Cluster, size_bytes: int, log_id: int) -> float:
    """Write a log of that size into the folder of the only node; return the seconds it took."""
    began = time.perf_counter()
    files, folder = OsFileSystem(), str(log_folder(cluster))
    files.make_folders(folder)
    log = Commitlog.open(files, folder, log_id=log_id)
    records = RecordColumns()
    for _ in range(RECORDS_A_BATCH):
        records.add(os.urandom(RECORD_BYTES))
    body, synced = encode_body(records), 0
    while log.end_offset < size_bytes:
        batch = stamp(
            body,
            log_id=log_id,
            base_index=log.next_index,
            term=1,
            timestamp_ms=int(time.time() * 1000),
            offset=log.end_offset,
            previous_chain=log.last_chain,
        )
        log.append([batch])
        if log.end_offset - synced >= SYNC_EACH_BYTES or log.end_offset >= size_bytes:
            ticket = log.start_sync()
            assert ticket is not None
            ticket.run()
            log.finish_sync(ticket)
            synced = log.end_offset
    log.settle(log.end_index)
    CheckpointFile(files, f"{folder}/checkpoint").save(Checkpoint(log.end_index, -1))
    log.close()
    HardStateFile(files, f"{folder}/vote").save(HardState(1, "n1"))
    return time.perf_counter() - began


def forget_pages(folder: Path) -> None:
    """Let the operating system drop what it has cached of the log's files."""
    for path in folder.iterdir():
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def seconds_to_open(cluster: Cluster, log_id: int) -> float:
    folder = log_folder(cluster)
    forget_pages(folder)
    files = OsFileSystem()
    committed = CheckpointFile(files, f"{folder}/checkpoint").load().committed_index
    began = time.perf_counter()
    log = Commitlog.open(files, str(folder), log_id=log_id, committed_index=committed)
    seconds = time.perf_counter() - began
    log.close()
    return seconds


def seconds_to_ready(cluster: Cluster, *, killed: bool) -> float:
    forget_pages(log_folder(cluster))
    began = time.perf_counter()
    cluster.start("n1")
    eventually(lambda: is_ready(cluster), what="n1 is ready", timeout_s=FIRST_START_S)
    seconds = time.perf_counter() - began
    assert cluster.append("n1", "one more").status_code == 200
    if killed:
        cluster.kill("n1")
    else:
        assert cluster.stop("n1") == 0
    return seconds


def is_ready(cluster: Cluster) -> bool:
    return cluster.get("n1", "/readyz").status_code == 200


def clusters(folder: Path, sizes: dict[str, int]) -> Iterator[tuple[str, Cluster]]:
    for name in sizes:
        (folder / name).mkdir()
        yield name, Cluster(folder / name, 1, sections=SECTIONS, cluster_id="startup")


def measure(
    folder: Path, large_bytes: int, runs: int, progress: Callable[[int, int], None] = lambda done, of: None
) -> list[dict[str, object]]:
    """Return one figure a size, and last how many times longer the large log takes, open and ready."""
    log_id = log_id_of("startup", "default")
    sizes = {"small": SMALL_BYTES, "large": large_bytes}
    nodes = dict(clusters(folder, sizes))
    figures: dict[str, dict[str, object]] = {name: {"bytes": sizes[name], "runs": runs} for name in nodes}
    opened: dict[str, list[float]] = {name: [] for name in nodes}
    ready: dict[str, list[float]] = {name: [] for name in nodes}
    try:
        for name, cluster in nodes.items():
            figures[name]["made_s"] = round(make_log(cluster, sizes[name], log_id), 1)
            figures[name]["first_start_s"] = round(seconds_to_ready(cluster, killed=False), 2)
        for run in range(runs):
            progress(run, runs)
            for name, cluster in nodes.items():
                opened[name].append(seconds_to_open(cluster, log_id))
                ready[name].append(seconds_to_ready(cluster, killed=run % 2 == 0))
    finally:
        for cluster in nodes.values():
            cluster.close()
    for name, figure in figures.items():
        figure["open_ms"] = round(statistics.median(opened[name]) * 1000, 1)
        figure["open_max_ms"] = round(max(opened[name]) * 1000, 1)
        figure["ready_s"] = round(statistics.median(ready[name]), 2)
        figure["ready_max_s"] = round(max(ready[name]), 2)
    ratio = {
        what: round(statistics.median(seconds["large"]) / statistics.median(seconds["small"]), 2)
        for what, seconds in (("open", opened), ("ready", ready))
    }
    return [
        *({"figure": f"startup, {name}", **figure} for name, figure in figures.items()),
        {"figure": "startup, large to small", **ratio},
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large-gib", type=float, default=10.0)
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--folder", type=Path, help="where there is room for the large log")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="commitlog-startup-") as folder:
        figures = measure(Path(folder), round(options.large_gib * GIB), options.runs)
    for figure in figures:
        print_figure(**figure)
    return 0


if __name__ == "__main__":
    run_program(main)
