"""The allocator of Arrow in a node and in a job."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("asked", "used"), [(None, "system"), ("mimalloc", "mimalloc")])
def test_arrow_allocates_by_the_c_library_unless_asked_otherwise(asked: str | None, used: str) -> None:
    """In a process of its own: the allocator of this one stays."""
    environment = {name: text for name, text in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    if asked is not None:
        environment["ARROW_DEFAULT_MEMORY_POOL"] = asked
    script = (
        "import pyarrow as pa; from storage.arrow_memory import allocate_by_libc; allocate_by_libc(); "
        "print(pa.default_memory_pool().backend_name)"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout == f"{used}\n"
