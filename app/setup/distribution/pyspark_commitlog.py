"""Registration for Spark 4: the wheel has this module at its top level.

A session imports each installed top-level module `pyspark_*` and registers its DefaultSource, so that
`format("commitlog")` works without `spark.dataSource.register`.
"""

from spark_jobs.source import CommitlogDataSource as DefaultSource

__all__ = ["DefaultSource"]
