"""`format("commitlog")` for reads: batch, stream, union with the Delta table."""

from spark_jobs.source.data_source import CommitlogDataSource

__all__ = ["CommitlogDataSource"]
