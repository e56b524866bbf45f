"""Locations of tables: folders or URLs. A separate module, because each Python worker of Spark imports it."""

from pathlib import Path


def is_url(text: str) -> bool:
    return "://" in text


def location(text: str, folder: Path | None = None) -> str:
    """Return a URL unchanged, a path in full. folder: base of a relative path, None for the current one."""
    return text if is_url(text) else str(((folder or Path.cwd()) / text).resolve())
