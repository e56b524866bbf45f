"""A configuration that cannot work is refused before anything starts."""

import pytest

from app.errors import ConfigError
from app.raft.config import RaftConfig


def test_the_defaults_fit_together() -> None:
    config = RaftConfig()
    assert config.election_timeout_ms == (500, 1_000)
    assert config.max_pending == 1_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_pending": 0},
        {"tick_interval_ms": -1},
        {"election_timeout_ms": (1_000, 500)},
        {"election_timeout_ms": (0, 500)},
        {"heartbeat_interval_ms": 300},
        {"tick_interval_ms": 200},
        {"push_max_bytes": 2**40},
    ],
)
def test_values_that_cannot_work_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        RaftConfig(**wrong)  # type: ignore[arg-type]
