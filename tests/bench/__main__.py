"""Run all benchmarks of `make bench`, one after the other; JSON lines and the table of ratios on stdout.

    python -m tests.bench [NAME ...]

tests/bench/README.md describes them, and the others, which run alone as `python -m tests.bench.NAME`.
The exit code is the highest of the benchmarks.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence

from tests.support.programs import READER_GONE, run_program

BENCHMARKS = ("storage_bench", "loop_cost", "table", "failover", "spark.log_to_delta")


def parse(arguments: Sequence[str] | None = None) -> list[str]:
    """Return the names of the benchmarks to run."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {' '.join(BENCHMARKS)}")
    names: list[str] = parser.parse_args(arguments).names
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"NAME must be one of {', '.join(BENCHMARKS)}, got {unknown[0]!r}")
    return names or list(BENCHMARKS)


def main() -> int:
    worst = 0
    for name in parse():
        code = subprocess.run([sys.executable, "-m", f"tests.bench.{name}"]).returncode
        worst = max(worst, abs(code))  # negative: ended by that signal
        if code == READER_GONE:
            break
    return worst


if __name__ == "__main__":
    run_program(main)
