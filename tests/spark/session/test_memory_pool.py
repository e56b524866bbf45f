"""Arrow allocates by the C library in the driver and in Spark's Python workers."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession


def test_driver_and_workers_use_the_same_allocator(spark: SparkSession) -> None:
    def pool_of_the_worker(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"pool": [pa.default_memory_pool().backend_name]})

    found = {row.pool for row in spark.range(1).mapInArrow(pool_of_the_worker, "pool STRING").collect()}
    assert found | {pa.default_memory_pool().backend_name} == {"system"}
