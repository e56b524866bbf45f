"""Many seeds of groups in controller mode: `commitlog sim --mode controller`. A seed replays its run."""

import argparse
import gc
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from tests.simulation.controller.cluster import HaCluster
from tests.simulation.controller.nemesis import EVENTS
from tests.simulation.controller.plan import long_plan_of, plan_of
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


def rare_events(counts: Counter[str]) -> list[str]:
    """The kinds of events that happened too rarely to prove anything."""
    least = EVENTS_AN_HOUR * counts["simulated seconds"] / 3_600
    return [f"{kind} happened only {counts[kind]} times" for kind in EVENTS if counts[kind] < least]


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


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="commitlog sim --mode controller", description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed, to replay it")
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="simulated seconds of a seed")
    parser.add_argument("--full", action="store_true", help=f"until {FULL_MASTER_CHANGES} master changes")
    parser.add_argument("--usual", action="store_true", help="at the times of the defaults: longer, cheaper")
    options = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)
    started = time.process_time()
    if options.seed is not None:
        cluster, violation = run_seed(options.seed, options.seconds, tell=True, usual=options.usual)
        for line in (cluster.world.lines or ()) if violation else ():
            sys.stderr.write(f"  {line}\n")
        counts, violations = counts_of(cluster), [] if violation is None else [str(violation)]
        counts["trace"] = cluster.world.trace_digest  # type: ignore[assignment]
    elif options.full:
        counts, violations = run_seeds(range(FULL_SEEDS), options.seconds, until=FULL_MASTER_CHANGES)
        if counts["master changes"] < FULL_MASTER_CHANGES:
            violations.append(f"only {counts['master changes']} master changes")
        violations += rare_events(counts)
    else:
        seeds = range(options.first, options.first + options.seeds)
        counts, violations = run_seeds(seeds, options.seconds, usual=options.usual)
    figures = {**counts, "cpu_s": round(time.process_time() - started, 1), "violations": violations}
    sys.stdout.write(json.dumps(figures) + "\n")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
