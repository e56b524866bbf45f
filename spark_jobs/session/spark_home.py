"""SPARK_HOME for Spark's programs on this machine: pyspark's own, without its zipped copy.

The JVM puts `python/lib/pyspark.zip` of its home first on the path of the Python processes that it starts.
Python does not cache compiled modules of a zip, so each planner of a stream and each pool of workers would
compile pyspark again: half a second of processor time each. Without the zip they import the installed
package.
"""

import contextlib
import zlib
from pathlib import Path

import pyspark

from spark_jobs.session.java import CACHE_FOLDER

PARTS = ("bin", "conf", "jars", "sbin")


def spark_home(cache: Path = CACHE_FOLDER, package: Path = Path(pyspark.__file__).parent) -> Path | None:
    """Return a folder in `cache` with links into `package`, pyspark's; None if Spark's jars are not in
    there."""
    if not (package / "jars").is_dir():
        return None
    home = cache / f"spark-{zlib.crc32(str(package).encode()):08x}"
    home.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        if (package / part).exists():
            with contextlib.suppress(FileExistsError):  # created before, or by another process just now
                (home / part).symlink_to(package / part)
    return home
