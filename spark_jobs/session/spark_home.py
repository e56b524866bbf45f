"""The folder that Spark's programs on this machine take for its home: pyspark's own, without its zipped copy.

The JVM puts `python/lib/pyspark.zip` of its home before all else on the path of the Python processes that it
starts. Python keeps nothing compiled of a zip, so each planner of a stream and each pool of workers would
compile pyspark anew: half a second of a processor each. Without the zip they import what is installed.
"""

import contextlib
import zlib
from pathlib import Path

import pyspark

from spark_jobs.session.java import CACHE_FOLDER

PARTS = ("bin", "conf", "jars", "sbin")


def spark_home(cache: Path = CACHE_FOLDER, package: Path = Path(pyspark.__file__).parent) -> Path | None:
    """A folder in `cache` with links into `package`, pyspark's; None when Spark's jars are not in there."""
    if not (package / "jars").is_dir():
        return None
    home = cache / f"spark-{zlib.crc32(str(package).encode()):08x}"
    home.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        if (package / part).exists():
            with contextlib.suppress(FileExistsError):  # made before, or by another process just now
                (home / part).symlink_to(package / part)
    return home
