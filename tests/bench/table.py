"""The table of docs/performance.md: every row beside etcd and NATS, in one run of at most ten minutes.

    python -m tests.bench.table [--turns 3] [--seconds 2] [--output docs/performance.md]

--output replaces the text between the two marks in a Markdown file, or writes a new file. Needs Go, openssl,
and once the network for the peers (tests/bench/systems/peers.py); a peer that cannot be fetched is left
out. Nothing else should run at the same time: the table reports the load of the machine before the run.
"""

import argparse
import os
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app.version import VERSION
from tests.bench import service
from tests.bench.compare import ROWS, turns
from tests.bench.systems.peers import Peers, fetch_peers
from tests.support.programs import run_program

Figure = dict[str, Any]
BEGIN, END = "<!-- beginning of the table -->", "<!-- end of the table -->"
TITLES = {
    "idle": "a node without clients",
    "tail-readers": "100 event streams at the tail, 5 000 appends per second",
    "long-polls": "100 long polls at the tail of the leader, 1 500 appends per second",
    "log-size": "a log of a few MiB, and the same log filled",
    "bulk-read": "one process reads the whole log as Arrow",
    "producer": "RecordProducer, one process, records of 100 bytes",
    "reader": "the same records as Arrow",
}


def processor() -> str:
    """Return the model name of the first processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def rate(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    low, high = figure["range"]
    return f"{figure['records_per_s']:,} ({low:,} to {high:,})"


def appends_table(summaries: dict[str, Figure]) -> list[str]:
    """Return the rows of appends as Markdown; peers in columns."""
    names = sorted({name for row in summaries.values() for name in row} - {"commitlog", "ratio"})
    lines = [
        "| row | commitlog, records/s | p50 ms | leader µs | follower µs | client µs |"
        + "".join(f" {name}, records/s | p50 ms | servers µs | ratio |" for name in names),
        "| --- " * (6 + 4 * len(names)) + "|",
    ]
    for row, found in summaries.items():
        ours = found.get("commitlog")
        costs = ("p50_ms", "leader_us", "follower_us", "client_us")
        cells = [row, rate(ours), *("-" if ours is None else str(ours[name]) for name in costs)]
        for name in names:
            peer = found.get(name)
            shown = ("p50_ms", "cpu_us")
            cells += [rate(peer), *("-" if peer is None else str(peer[each]) for each in shown)]
            cells.append(str(found.get("ratio", {}).get(name, "-")))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def service_table(found: dict[str, Figure]) -> list[str]:
    lines = ["| row | measured | figures |", "| --- | --- | --- |"]
    for row, figures in found.items():
        text = ", ".join(f"{name} {value}" for name, value in figures.items())
        lines.append(f"| {row} | {TITLES[row]} | {text} |")
    return lines


def write(path: Path, text: str) -> None:
    """Put the text between the marks of a file; write a file without them whole."""
    page = path.read_text() if path.exists() else ""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    path.write_text(f"{before}{begin}\n{text}{end}{after}" if begin and end else text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--port", type=int, default=28101, help="first port of the peers")
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--output", type=Path, help="a Markdown file; default: standard output, at the end")
    options = parser.parse_args()
    began, load = time.monotonic(), os.getloadavg()[0]
    peers = Peers() if options.without_peers else fetch_peers()
    appends = turns(ROWS, options.turns, options.seconds, options.port, peers)
    others = service.measure(records=1_000_000, fill_mib=512, seconds=options.seconds)
    text = "\n".join(
        [
            f"Run on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC: commitlog {VERSION}, {os.cpu_count()} cores "
            f"({processor()}), Python {platform.python_version()}, load {load:.1f} before the run; "
            f"{options.turns} alternating turns of {options.seconds} s for each row; medians, and ranges in "
            f"parentheses; {time.monotonic() - began:.0f} s in all. Ratio: this project to the other system.",
            "",
            *appends_table(appends),
            "",
            *service_table(others),
            "",
        ]
    )
    if options.output is None:
        sys.stdout.write(text)
    else:
        write(options.output, text)


if __name__ == "__main__":
    run_program(main)
