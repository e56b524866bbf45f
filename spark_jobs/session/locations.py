"""Locations of tables: folders or URLs. A separate module, because each Python worker of Spark imports it."""

from pathlib import Path

from app.tables.delta_log import is_url

__all__ = ["is_url", "location"]


def location(text: str, folder: Path | None = None) -> str:
    """Return a URL unchanged, a path in full. folder: base of a relative path, None for the current one."""
    return text if is_url(text) else str(((folder or Path.cwd()) / text).resolve())
