"""Check that commits of Delta tables are exclusive: of two drivers that write one version, one is refused.

Each append is exactly once only if this holds (tables/claims.py). Which class of Delta's log store a file
system gets is a setting, `spark.delta.logStore.SCHEME.impl`; Delta's own default for S3 lets the later of two
commits replace the earlier one.
"""

import uuid
from typing import Any
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from app.errors import ConfigError
from spark_jobs.session.jars import LOG_STORE_CLASS, OBJECT_LOG_STORE_CLASS
from spark_jobs.session.locations import is_url
from spark_jobs.session.spark_session import is_remote, on_databricks

FILE = "file"
S3_SCHEMES = ("s3", "s3a", "s3n")
DELTAS_OWN = {  # by scheme, where `spark.delta.logStore.SCHEME.impl` is not set
    **dict.fromkeys(S3_SCHEMES, "io.delta.storage.S3SingleDriverLogStore"),
    FILE: "io.delta.storage.HDFSLogStore",
}
NOT_EXCLUSIVE = {  # (scheme, class); None: of any scheme
    *((None, f"io.delta.storage.{name}") for name in ("S3SingleDriverLogStore", "LocalLogStore")),
    *((scheme, f"io.delta.storage.{name}") for scheme in (*S3_SCHEMES, FILE) for name in ("HDFSLogStore",)),
}
PROBE = "_commitlog_probe_"
REMEDY = "or start with --single-driver if no other driver ever writes these tables"


def check_exclusive(spark: SparkSession, root: str, *, single_driver: bool = False) -> None:
    """Raise ConfigError if commits below `root`, a folder or URL, are known not to be exclusive.

    An object store is tried: one object is written twice, of which the store must refuse the second.
    single_driver: the caller ensures that one driver alone writes the tables. A server of Spark Connect and
    Databricks choose their own way to commit, which is not checked.
    """
    if single_driver or is_remote(spark) or on_databricks():
        return
    scheme = urlsplit(root).scheme if is_url(root) else FILE
    used = store_class(spark, scheme)
    if (scheme, used) in NOT_EXCLUSIVE or (None, used) in NOT_EXCLUSIVE:
        ours = LOG_STORE_CLASS if scheme == FILE else OBJECT_LOG_STORE_CLASS
        raise ConfigError(
            f"{root}: commits through {used} are not exclusive, so two drivers could lose each other's rows: "
            f"set spark.delta.logStore.{scheme}.impl = {ours}, {REMEDY}"
        )
    if used == OBJECT_LOG_STORE_CLASS:
        _try_out(spark, root)


def store_class(spark: SparkSession, scheme: str) -> str | None:
    """Return the class of the log store for a scheme, None for Delta's own choice where that is exclusive."""
    # `spark.delta.logStore.class` is one for all schemes.
    for name in (f"spark.delta.logStore.{scheme}.impl", "spark.delta.logStore.class"):
        value: str | None = spark.conf.get(name, None)
        if value:
            return value
    return DELTAS_OWN.get(scheme)


def _try_out(spark: SparkSession, root: str) -> None:
    jvm: Any = spark._jvm
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    path = jvm.org.apache.hadoop.fs.Path(f"{root.rstrip('/')}/{PROBE}{uuid.uuid4().hex}")
    refusal = jvm.commitlog.ConditionalLogStore.probe(path, settings)
    if refusal is not None:
        raise ConfigError(f"{root}: {refusal}; use a store with conditional writes, {REMEDY}")
