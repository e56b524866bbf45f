"""The jars of a list, by Maven: it keeps them, so only the first call needs a network."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

FETCH_TIMEOUT_S = 600.0


class MavenFailed(RuntimeError):
    """Maven is not installed, or could not get the jars: the message has the remedy."""


def jars_of(pom: Path) -> list[Path]:
    """The jars that a pom's dependencies need. Raises MavenFailed."""
    command = shutil.which("mvn")
    if command is None:
        raise MavenFailed("the comparison needs Maven for Kafka's jars, and there is no `mvn` on PATH")
    with tempfile.TemporaryDirectory() as folder:
        listing = Path(folder) / "classpath"
        wanted = ["dependency:build-classpath", f"-Dmdep.outputFile={listing}"]
        run = subprocess.run(
            [command, "--batch-mode", "--quiet", "--file", str(pom), *wanted],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=FETCH_TIMEOUT_S,
        )
        if run.returncode != 0:
            raise MavenFailed(f"Maven could not resolve {pom.name}:\n{run.stdout[-2_000:]}")
        return [Path(path) for path in listing.read_text().strip().split(os.pathsep)]
