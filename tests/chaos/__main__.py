"""`make chaos`: real processes under faults, family by family; one JSON line a family on standard output.

`python -m tests.chaos [--family NAME ...] [--scale 0..1] [--seed N] [--out FILE] [--keep FOLDER]`
Exit code 1 when a promise was broken or a goal missed; README.md describes the families.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.chaos.families.catalog import FAMILIES
from tests.chaos.network.namespaces import isolation
from tests.chaos.report import Report
from tests.support.programs import run_program

SPARE_S = 120  # for a family's start and end, whatever its scale


def run_apart(
    family: str,
    seed: int,
    scale: float,
    folder: Path,
    prefix: Sequence[str],
    show: Callable[[int, int], None],
) -> dict[str, Any]:
    """Run a family in a process of its own, and return its line; past its limit it is ended."""
    limit_s = SPARE_S + FAMILIES[family].limit_s * scale
    isolated = "isolated" if prefix else "shared"
    command = [*prefix, sys.executable, "-m", "tests.chaos.child", family, str(seed), str(scale)]
    child = subprocess.Popen(
        [*command, str(folder), isolated], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    timer = threading.Timer(limit_s, _end, (child.pid,))
    timer.start()
    line: dict[str, Any] = {}
    try:
        assert child.stdout is not None
        for text in child.stdout:
            line = json.loads(text)
            if "done" in line:
                show(line["done"], line["of"])
        child.wait()
    finally:
        timer.cancel()
        _end(child.pid)
    if "family" not in line:
        report = Report(family, seed, scale, duration_s=limit_s)
        report.violations.append(
            f"no report: it ended with {child.returncode}, its limit was {limit_s:.0f} s"
        )
        return report.line()
    return line


def _end(group: int) -> None:
    """End a family with all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--family", nargs="+", choices=sorted(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full counts, 0 to 1")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="also write the JSON lines to this file")
    parser.add_argument("--keep", type=Path, help="keep data and log lines of the nodes in this folder")
    parser.add_argument("--no-namespaces", action="store_true", help="relays on 127.0.0.1, as without root")
    options = parser.parse_args(arguments)
    if not 0 <= options.scale <= 1:
        parser.error("--scale is from 0 to 1")
    return options


def main() -> int:
    options = parse()
    prefix = [] if options.no_namespaces else isolation()
    lines = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(options.out.open("w")) if options.out else None
        bar = stack.enter_context(
            Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
        )
        for family in options.family:
            task = bar.add_task(family, total=None)

            def show(done: int, of: int, task: Any = task) -> None:
                bar.update(task, completed=done, total=of)

            with tempfile.TemporaryDirectory(prefix="commitlog-chaos-") as temporary:
                folder = options.keep / family if options.keep else Path(temporary)
                line = run_apart(family, options.seed, options.scale, folder, prefix, show)
            lines.append(line)
            bar.update(task, description=f"{family}: {'passed' if line['passed'] else 'NOT PASSED'}")
            for target in (sys.stdout, out):
                if target is not None:
                    target.write(json.dumps(line) + "\n")
                    target.flush()
    return 1 if any(line["violation_count"] or line["missed"] for line in lines) else 0


if __name__ == "__main__":
    run_program(main)
