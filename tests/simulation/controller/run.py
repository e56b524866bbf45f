"""Many seeds of groups in controller mode: `commitlog sim --mode controller`. A seed replays its run."""

import gc
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable

import click

from tests.simulation.controller.cluster import HaCluster
from tests.simulation.controller.nemesis import EVENTS
from tests.simulation.controller.plan import long_plan_of, plan_of
from tests.simulation.seed_options import seed_options
from tests.simulation.world.promises import Violation, unexpected

SECONDS = 40.0  # simulated, of one seed
FULL_SEEDS = 1_000
EVENTS_AN_HOUR = 5  # of each kind, at least: 500 in 100 hours
FULL_MASTER_CHANGES = 5_000


def run_seed(
    seed: int, seconds: float, *, tell: bool = False, usual: bool = False
) -> tuple[HaCluster, Violation | None]:
    """usual: at the times of the defaults."""
    cluster = HaCluster(seed, long_plan_of(seed) if usual else plan_of(seed), tell=tell)
    try:
        cluster.run(seconds)
        cluster.settle()
    except Violation as violation:
        return cluster, violation
    except Exception as error:
        return cluster, unexpected(error)
    return cluster, None


def counts_of(cluster: HaCluster) -> Counter[str]:
    """Counts of one cluster: rare paths, events, and reasons for being without a master."""
    counts = cluster.checker.counts + cluster.nemesis.counts
    counts.update({"seeds": 1, "reads": cluster.ledger.reads})
    counts["unclean pages"] += cluster.checker.unclean_reads.pages
    counts["simulated seconds"] += cluster.world.now_us // 1_000_000
    if cluster.liveness is not None:
        looks = cluster.liveness.masterless
        counts.update({f"masterless: {reason}": number for reason, number in looks.items()})
        counts["masterless: looks"] += cluster.liveness.looks
    return counts


def rare_events(counts: Counter[str], kinds: Iterable[str] = EVENTS) -> list[str]:
    """The kinds of events that happened too rarely to prove anything."""
    least = EVENTS_AN_HOUR * counts["simulated seconds"] / 3_600
    return [f"{kind} happened only {counts[kind]} times" for kind in kinds if counts[kind] < least]


def run_seeds(
    seeds: Iterable[int],
    seconds: float = SECONDS,
    *,
    until: int | None = None,
    usual: bool = False,
    progress: Callable[[Counter[str]], None] = lambda _counts: None,
) -> tuple[Counter[str], list[str]]:
    """Counts of all clusters, and the violations. until: master changes after which the run ends."""
    counts: Counter[str] = Counter()
    violations: list[str] = []
    for seed in seeds:
        cluster, violation = _without_collector(seed, seconds, usual)
        counts.update(counts_of(cluster))
        if violation is not None:
            violations.append(f"seed {seed} at {cluster.world.now_us / 1e6:.3f} s: {violation}")
        progress(counts)
        if until is not None and counts["master changes"] >= until:
            break
    return counts, violations


def _without_collector(seed: int, seconds: float, usual: bool) -> tuple[HaCluster, Violation | None]:
    """Run a seed without the cyclic garbage collector: a run creates few cycles, and is short."""
    gc.collect()
    gc.disable()
    try:
        return run_seed(seed, seconds, usual=usual)
    finally:
        gc.enable()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@seed_options(SECONDS)
@click.option("--full", is_flag=True, help=f"Run until {FULL_MASTER_CHANGES:,} changes of the master.")
@click.option("--usual", is_flag=True, help="Use the times of the default settings: longer, and cheaper.")
def main(seed: int | None, seeds: int, first: int, seconds: float, full: bool, usual: bool) -> None:
    """Simulate controllers and their groups under faults. A seed replays its run.

    The last line is one JSON document. Exit code 1: a promise was broken, or --full did not reach its size.
    """
    logging.disable(logging.CRITICAL)
    started = time.process_time()
    if seed is not None:
        cluster, violation = run_seed(seed, seconds, tell=True, usual=usual)
        for line in (cluster.world.lines or ()) if violation else ():
            sys.stderr.write(f"  {line}\n")
        counts, violations = counts_of(cluster), [] if violation is None else [str(violation)]
        counts["trace"] = cluster.world.trace_digest  # type: ignore[assignment]
    elif full:
        counts, violations = run_seeds(range(FULL_SEEDS), seconds, until=FULL_MASTER_CHANGES)
        if counts["master changes"] < FULL_MASTER_CHANGES:
            violations.append(f"only {counts['master changes']} master changes")
        violations += rare_events(counts)
    else:
        counts, violations = run_seeds(range(first, first + seeds), seconds, usual=usual)
    figures = {**counts, "cpu_s": round(time.process_time() - started, 1), "violations": violations}
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()
