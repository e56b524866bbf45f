"""Version of Spark that the source needs. Imports nothing that older versions lack."""

import re

LEAST_SPARK = (4, 2)  # the first with read limits of streams in Python (SPARK-55304)


def check_spark(version: str) -> None:
    """Raise ImportError for a pyspark that is too old. version: such as 4.1.1 or 4.2.0.dev1."""
    found = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if found < LEAST_SPARK:
        least = ".".join(map(str, LEAST_SPARK))
        raise ImportError(
            f"the commitlog source needs pyspark {least} or newer (on Databricks runtime 19 or newer), found "
            f"{version}: older versions have no read limits for streams in Python"
        )
