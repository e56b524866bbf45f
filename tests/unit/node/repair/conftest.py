import pytest

from app.node.repair import log_repair as repair_module


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of milliseconds before a repair tries something again."""
    monkeypatch.setattr(repair_module, "_RETRY_FIRST_S", 0.002)
    monkeypatch.setattr(repair_module, "_RETRY_LAST_S", 0.05)
