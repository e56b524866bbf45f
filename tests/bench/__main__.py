"""`make bench`: every benchmark, one after the other; JSON lines and the table of ratios on stdout."""

import subprocess
import sys

BENCHMARKS = ("storage_bench", "loop_cost", "table", "failover", "spark.log_to_delta")


def main() -> int:
    codes = [subprocess.run([sys.executable, "-m", f"tests.bench.{name}"]).returncode for name in BENCHMARKS]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
