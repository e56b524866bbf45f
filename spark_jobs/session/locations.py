"""Locations of tables: folders or URLs. A separate module, because each Python worker of Spark imports it."""

import re
from pathlib import Path

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def is_url(text: str) -> bool:
    """Return whether it names a file system, as in `s3://bucket/tables` or `dbfs:/tables`."""
    return _SCHEME.match(text) is not None


def location(text: str, folder: Path | None = None) -> str:
    """Return a URL unchanged, a path in full. folder: base of a relative path, None for the current one."""
    return text if is_url(text) else str(((folder or Path.cwd()) / text).resolve())
