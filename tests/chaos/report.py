"""Findings of one family of faults, as one JSON line."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

SHOWN_VIOLATIONS = 20


class CannotRun(Exception):
    """This machine lacks what the family needs; it is not counted as passed."""


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """n, p50, p99 and max; p99 is interpolated."""
    ordered = sorted(values)
    if not ordered:
        return {"n": 0}
    p99 = statistics.quantiles(ordered, n=100, method="inclusive")[98] if len(ordered) > 1 else ordered[0]
    figures = {"p50": statistics.median(ordered), "p99": p99, "max": ordered[-1]}
    return {"n": len(ordered), **{name: round(value, 1) for name, value in figures.items()}}


@dataclass
class Report:
    """violations: broken promises. missed: figures beyond their goal, and work that stood still too long."""

    family: str
    seed: int
    scale: float
    network: str = "none"
    counts: Counter[str] = field(default_factory=Counter)
    gaps_ms: dict[str, list[float]] = field(
        default_factory=dict
    )  # by fault: longest without an acknowledgement
    figures: dict[str, object] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    cannot_run: str | None = None
    duration_s: float = 0.0

    def gap(self, fault: str, gap_s: float) -> None:
        self.gaps_ms.setdefault(fault, []).append(gap_s * 1000)

    def goal(self, what: str, value: float, most: float) -> None:
        if value > most:
            self.missed.append(f"{what}: {value:.0f}, at most {most:.0f} was the goal")

    @property
    def passed(self) -> bool:
        return self.cannot_run is None and not self.violations and not self.missed

    def line(self) -> dict[str, Any]:
        return {
            "family": self.family,
            "passed": self.passed,
            "cannot_run": self.cannot_run,
            "seed": self.seed,
            "scale": self.scale,
            "network": self.network,
            "duration_s": round(self.duration_s, 1),
            "counts": dict(sorted(self.counts.items())),
            "gap_ms": {fault: percentiles(gaps) for fault, gaps in self.gaps_ms.items()},
            **self.figures,
            "violation_count": len(self.violations),
            "violations": self.violations[:SHOWN_VIOLATIONS],
            "missed": self.missed[:SHOWN_VIOLATIONS],
        }
