"""Limit of a micro-batch that the options of a stream set."""

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from spark_jobs.source.options import SourceOptions


def default_limit(options: SourceOptions) -> ReadLimit:
    """Return the limit in records, else that in bytes, else none."""
    if options.max_records_per_trigger is not None:
        return ReadMaxRows(options.max_records_per_trigger)
    if options.max_bytes_per_trigger is not None:
        return ReadMaxBytes(options.max_bytes_per_trigger)
    return ReadAllAvailable()
