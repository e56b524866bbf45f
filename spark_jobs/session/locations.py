"""Where tables are: a folder, or a URL. By itself, for each Python worker of Spark imports it."""

from pathlib import Path


def is_url(text: str) -> bool:
    return "://" in text


def location(text: str, folder: Path | None = None) -> str:
    """A URL as it is, a path in full. folder: what it is relative to, the current one for None."""
    return text if is_url(text) else str(((folder or Path.cwd()) / text).resolve())
