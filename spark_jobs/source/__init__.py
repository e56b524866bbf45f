"""`format("commitlog")` for reads: batch, stream, union with the Delta table."""

from pyspark import __version__

from spark_jobs.source.version import check_spark

check_spark(__version__)

from spark_jobs.source.data_source import CommitlogDataSource  # noqa: E402  # older versions fail to import it

__all__ = ["CommitlogDataSource"]
