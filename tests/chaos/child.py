"""One family in a process of its own: `python -m tests.chaos.child FAMILY SEED SCALE FOLDER ISOLATED`.

Standard output: JSON lines `{"done": 3, "of": 50}` while it works, and the report at the end.
"""

import asyncio
import json
import logging
import sys
import time
from pathlib import Path

from tests.chaos.families.catalog import FAMILIES
from tests.chaos.network.namespaces import raise_loopback
from tests.chaos.report import CannotRun, Report
from tests.chaos.session import World


def run_family(name: str, seed: int, scale: float, folder: Path, *, isolated: bool) -> Report:
    report = Report(name, seed, scale)

    def progress(done: int, of: int) -> None:
        tell({"done": done, "of": of})

    started = time.monotonic()
    try:
        asyncio.run(FAMILIES[name].run(World(folder, report, isolated, progress)))
    except CannotRun as reason:
        report.cannot_run = str(reason)
    except Exception as error:
        logging.getLogger(__name__).exception("family %s ended early", name)
        report.violations += [f"ended early: {cause!r}"[:1_000] for cause in causes(error)]
    report.duration_s = time.monotonic() - started
    return report


def causes(error: BaseException) -> list[BaseException]:
    """Return the errors inside a group of exceptions, or the exception itself."""
    if isinstance(error, BaseExceptionGroup):
        return [cause for inner in error.exceptions for cause in causes(inner)]
    return [error]


def tell(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main() -> None:
    name, seed, scale, folder, isolated = sys.argv[1:]
    if isolated == "isolated":
        raise_loopback()
    tell(run_family(name, int(seed), float(scale), Path(folder), isolated=isolated == "isolated").line())


if __name__ == "__main__":
    main()
