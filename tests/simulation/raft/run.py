"""Run seeds: `commitlog sim --seed 7` replays one, `commitlog sim --seeds 100` runs many and counts.

A failure is shrunk to the few faults that it needs, and printed with the one command that replays it. The
last line is one JSON document. Exit code 0: every promise was kept (with --full: and every rare path was
reached, at the size that is asked for); 1: not.
"""

import gc
import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import click

from tests.simulation.raft.cluster import SimulatedCluster
from tests.simulation.raft.faults import OPERATIONS
from tests.simulation.raft.liveness import REASONS
from tests.simulation.raft.many_logs import run_many_logs
from tests.simulation.raft.plans import plan_of
from tests.simulation.raft.shrink import shrink
from tests.simulation.raft.sometimes import POINTS
from tests.simulation.seed_options import seed_options
from tests.simulation.world.promises import Violation, unexpected

CHUNK = 4  # seeds a process takes at a time
# What `--full` must reach: cluster-hours, faults, elections, seeds.
FULL = {"cluster_hours": 200, "faults": 30_000, "elections": 5_000, "seeds": 2_000}
OPERATIONS_MIN = 500  # of each kind in a full run
FULL_SEEDS, FULL_SECONDS = 2_400, 400.0
MANY_LOGS_SEEDS, MANY_LOGS_SECONDS = 60, 60.0  # beside them, of many logs over one disk


class Failure(NamedTuple):
    """A promise that was broken. at_s: simulated seconds."""

    seed: int
    seconds: float
    message: str
    at_s: float


class Outcome(NamedTuple):
    """Result of one seed, or of many."""

    counts: Counter[str]
    sometimes: Counter[str]
    faults: Counter[str]  # by kind
    failures: list[Failure]
    leaderless: Counter[str]  # looks of the liveness check without a leader, by reason


def run_seed(
    seed: int, seconds: float, only: Sequence[int] | None = None, *, tell: bool = False
) -> tuple[SimulatedCluster, Violation | None]:
    """Let the cluster of the seed live and heal. seconds: of a calm one."""
    plan = plan_of(seed)
    lasting_s = seconds * plan.share
    cluster = SimulatedCluster(seed, plan, seconds=lasting_s, only=only, tell=tell)
    try:
        cluster.run(lasting_s)
        cluster.settle()
    except Violation as violation:
        return cluster, violation
    except Exception as error:
        return cluster, unexpected(error)
    finally:
        cluster.close()
    return cluster, None


def outcome_of(seed: int, seconds: float) -> Outcome:
    """Run one seed and count."""
    started_cpu = time.process_time()
    cluster, violation = run_seed(seed, seconds)
    faults = cluster.nemesis.counts
    counts = Counter(
        seeds=1,
        simulated_us=cluster.world.now_us,
        cpu_ms=round((time.process_time() - started_cpu) * 1000),
        elections=cluster.checker.elections,
        appends=len(cluster.ledger.acknowledged),
        replays=cluster.ledger.replays,
        reads=cluster.ledger.reads,
        pages=cluster.ledger.returned.pages,
        cursors=cluster.ledger.returned.cursors,
        liveness_looks=cluster.liveness.looks,
        frames=cluster.network.sent,
        frames_lost=cluster.network.lost,
        steps=cluster.world.steps,
        faults=sum(count for kind, count in faults.items() if kind not in OPERATIONS),
    )
    failures = []
    if violation is not None:
        failures.append(Failure(seed, seconds, str(violation), cluster.world.now_us / 1e6))
    return Outcome(counts, cluster.sometimes.counts, faults, failures, cluster.liveness.leaderless)


def _run_chunk(seeds: Sequence[int], seconds: float) -> list[Outcome]:
    logging.disable(logging.CRITICAL)  # full disks and the like are expected here
    outcomes = []
    gc.disable()  # a run makes few cycles, and is short
    for seed in seeds:
        outcomes.append(outcome_of(seed, seconds))
        gc.collect()
    gc.enable()
    return outcomes


def run_seeds(seeds: Sequence[int], seconds: float, jobs: int) -> Iterator[Outcome]:
    """Yield what each seed came to, in order, with so many processes."""
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    with ProcessPoolExecutor(jobs) as pool:
        try:
            for outcomes in pool.map(_run_chunk, chunks, [seconds] * len(chunks)):
                yield from outcomes
        finally:
            pool.shutdown(cancel_futures=True)


def total_of(outcomes: Iterable[Outcome]) -> Outcome:
    """Add them up, until one has failed."""
    total = Outcome(Counter(), Counter(), Counter(), [], Counter())
    for outcome in outcomes:
        total.counts.update(outcome.counts)
        total.sometimes.update(outcome.sometimes)
        total.faults.update(outcome.faults)
        total.leaderless.update(outcome.leaderless)
        total.failures.extend(outcome.failures)
        if outcome.failures:
            break
    return total


def run_all_many_logs(jobs: int) -> tuple[list[str], Counter[str]]:
    """Run the seeds of many logs over one disk; return what broke, and what was done."""
    problems: list[str] = []
    counts: Counter[str] = Counter()
    with ProcessPoolExecutor(jobs) as pool:
        seconds = [MANY_LOGS_SECONDS] * MANY_LOGS_SEEDS
        for violation, count in pool.map(run_many_logs, range(MANY_LOGS_SEEDS), seconds):
            counts.update(count)
            if violation is not None:
                problems.append(violation)
    return problems, counts


def figures_of(total: Outcome, took_s: float) -> dict[str, Any]:
    """The printed result, as JSON."""
    counts = total.counts
    simulated_s, cpu_s = counts["simulated_us"] / 1e6, counts["cpu_ms"] / 1000
    hours = simulated_s / 3600
    return {
        "seeds": counts["seeds"],
        "cluster_hours": round(hours, 2),
        "seconds": round(took_s, 1),
        "cpu_s": round(cpu_s, 1),
        "simulated_s_per_cpu_s": round(simulated_s / cpu_s) if cpu_s else 0,
        **{name: counts[name] for name in ("faults", "elections", "appends", "replays", "reads")},
        **{name: counts[name] for name in ("pages", "cursors", "liveness_looks")},
        **{name: counts[name] for name in ("frames", "frames_lost", "steps")},
        "per_hour": {name: round(counts[name] / hours) for name in ("faults", "elections", "appends")},
        "operations": {kind: total.faults[kind] for kind in OPERATIONS},
        "faults_by_kind": {
            kind: count for kind, count in sorted(total.faults.items()) if kind not in OPERATIONS
        },
        "leaderless": {reason: total.leaderless[reason] for reason in REASONS},
        "sometimes": {point: total.sometimes[point] for point in POINTS},
    }


def replay_command(seed: int, seconds: float, only: Sequence[int] | None = None) -> str:
    kept = "" if only is None else f" --only {','.join(map(str, only)) or 'none'}"
    return f"commitlog sim --seed {seed} --seconds {seconds:g}{kept}"


def report(failure: Failure) -> None:
    """Print the violation, and the command that reproduces it."""
    out = sys.stderr.write
    out(f"seed {failure.seed} at {failure.at_s:.3f} s: {failure.message}\n")
    out(f"replay: {replay_command(failure.seed, failure.seconds)}\n")
    only = shrink(lambda only: run_seed(failure.seed, failure.seconds, only))
    cluster, violation = run_seed(failure.seed, failure.seconds, only, tell=True)
    out(f"\nshrunk to {len(only)} faults: {violation}\n")
    for fault in cluster.faults:
        out(f"  {fault}\n")
    out(f"replay: {replay_command(failure.seed, failure.seconds, only)}\n\nthe end of the trace:\n")
    for line in cluster.world.lines or ():
        out(f"  {line}\n")


def _only(text: str) -> list[int]:
    return [] if text == "none" else [int(number) for number in text.split(",")]


def replay(seed: int, seconds: float, only: Sequence[int] | None) -> int:
    """Run one seed, and print its trace when it fails; return the exit code."""
    cluster, violation = run_seed(seed, seconds, only, tell=True)
    for line in (cluster.world.lines or ()) if violation else ():
        sys.stderr.write(f"  {line}\n")
    figures = {
        "seed": seed,
        "simulated_s": cluster.world.now_us / 1e6,
        "violation": None if violation is None else str(violation),
        "faults": len(cluster.faults) if only is None else [str(each) for each in cluster.faults],
        "trace": cluster.world.trace_digest,
    }
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0 if violation is None else 1


def run(seeds: Sequence[int], seconds: float, jobs: int, *, full: bool) -> int:
    """Run the seeds and print the figures; return the exit code. full: also many logs, and the least size."""
    started = time.perf_counter()
    outcomes = run_seeds(seeds, seconds, jobs)
    with click.progressbar(
        outcomes, length=len(seeds), label="seeds", file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as watched:
        total = total_of(watched)
    figures = figures_of(total, time.perf_counter() - started)
    problems = [f"{failure.seed}: {failure.message}" for failure in total.failures]
    for failure in total.failures:
        report(failure)
    if full and not problems:
        broken, figures["many_logs"] = run_all_many_logs(jobs)
        problems += broken + missing(total, figures)
        for problem in problems:
            sys.stderr.write(f"{problem}\n")
    sys.stdout.write(json.dumps(figures | {"problems": problems}) + "\n")
    return 1 if problems else 0


def missing(total: Outcome, figures: Mapping[str, Any]) -> list[str]:
    """Return what a full run has not reached: rare paths, its size, operations of each kind."""
    missed = [point for point in POINTS if not total.sometimes[point]]
    small = [name for name, least in FULL.items() if figures[name] < least]
    rare = [kind for kind in OPERATIONS if total.faults[kind] < OPERATIONS_MIN]
    return [
        *(f"never reached: {point} ({POINTS[point]})" for point in missed),
        *(f"{name}: {figures[name]} of {FULL[name]}" for name in small),
        *(f"{kind}: {total.faults[kind]} of {OPERATIONS_MIN} operations" for kind in rare),
    ]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@seed_options(60.0)
@click.option(
    "--only", type=_only, metavar="N,N", help="With --seed: numbers of the faults that happen, or `none`."
)
@click.option(
    "--jobs", type=click.IntRange(1), default=os.cpu_count() or 1, show_default=True, help="Processes."
)
@click.option("--full", is_flag=True, help="Run the whole size; every rare path must be reached.")
def main(
    seed: int | None,
    seeds: int,
    first: int,
    seconds: float,
    only: list[int] | None,
    jobs: int,
    full: bool,
) -> None:
    """Simulate clusters in Raft mode under faults.

    A failure is shrunk to the few faults that it needs, and printed with the command that replays it. The
    last line is one JSON document. Exit code 1: a promise was broken, or --full did not reach its size.
    """
    if (seed is None and only is not None) or (seed is not None and full):
        raise click.UsageError("--only requires --seed, and --full excludes it")
    logging.disable(logging.CRITICAL)
    if full:
        seeds, seconds = FULL_SEEDS, FULL_SECONDS
    if seed is not None:
        sys.exit(replay(seed, seconds, only))
    sys.exit(run(range(first, first + seeds), seconds, jobs, full=full))


if __name__ == "__main__":
    main()
