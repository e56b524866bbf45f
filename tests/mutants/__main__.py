"""`make mutants`: plants every bug in turn and shows who notices it.

Exit code 1 when one survives, or when one is stale.
"""

import argparse
import logging
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.mutants.catalogue import GROUP_MUTANTS, MUTANTS
from tests.mutants.killing import StaleMutant, killed_by_group, killed_by_simulator, killed_by_test
from tests.mutants.planting import GroupMutant, Mutant

WIDTH = 90  # of the killer's output
ALL: list[Mutant] = [*MUTANTS, *GROUP_MUTANTS]


class Row(NamedTuple):
    name: str
    rule: str
    simulator: str | None
    test: str | None
    seconds: float
    stale: str | None = None


def judge(number: int) -> Row:
    """Plant the bug of that number."""
    logging.disable(logging.CRITICAL)
    mutant = ALL[number]
    started = time.perf_counter()
    simulator = test = stale = None
    try:
        with tempfile.TemporaryDirectory() as folder:
            test = killed_by_test(mutant, Path(folder))
        is_of_group = isinstance(mutant, GroupMutant)
        simulator = killed_by_group(mutant) if is_of_group else killed_by_simulator(mutant)
    except StaleMutant as error:
        stale = str(error)
    return Row(mutant.name, mutant.rule, simulator, test, time.perf_counter() - started, stale)


def main() -> int:
    argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__).parse_args()
    out = sys.stdout.write
    out(f"{'planted bug':<52} {'rule':<5} {'s':>5}  killed by\n")
    survivors = by_simulator = stale = 0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for row in pool.map(judge, range(len(ALL))):
            by_simulator += row.simulator is not None
            stale += row.stale is not None
            survivors += row.stale is None and row.simulator is None and row.test is None
            killers = "; ".join(killer[:WIDTH] for killer in (row.simulator, row.test) if killer) or "NO TEST"
            shown = killers if row.stale is None else f"STALE: {row.stale}"
            out(f"{row.name:<52} {row.rule:<5} {row.seconds:>5.1f}  {shown}\n")
            sys.stdout.flush()
    out(f"{len(ALL)} planted bugs, {by_simulator} killed by the simulator, {survivors} survive")
    out(f", {stale} stale\n")
    return 1 if survivors or stale else 0


if __name__ == "__main__":
    sys.exit(main())
