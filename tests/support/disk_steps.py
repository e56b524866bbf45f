"""The order in which a program makes files durable and gives them their names."""

import os
from pathlib import Path

import pytest


def record_disk_steps(monkeypatch: pytest.MonkeyPatch, linked: str) -> list[str]:
    """Return a list that gets the path of what is synced, in order, and `linked` for each hard link."""
    sync, link, steps = os.fsync, os.link, list[str]()

    def fsync(file: int) -> None:
        sync(file)
        steps.append(str(Path(f"/proc/self/fd/{file}").readlink()))

    def make_link(source: Path, target: Path) -> None:
        link(source, target)
        steps.append(linked)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", make_link)
    return steps
