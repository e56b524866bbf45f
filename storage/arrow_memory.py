"""Where Arrow takes its memory from."""

import os

import pyarrow as pa


def allocate_by_libc() -> None:
    """Let Arrow allocate by the C library, in this process; the user's environment wins.

    Its own allocator takes 4 MiB for the first value, and returns memory to the kernel after each block and
    takes it again, which is half of the system time of a Spark job (docs/measurements.md, sections 4 and 5).
    """
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        pa.set_memory_pool(pa.system_memory_pool())
