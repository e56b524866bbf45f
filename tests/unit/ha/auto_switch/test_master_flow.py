"""Flow control at a master: a slave that catches up gets no more than its quota, a member of the set all."""

import pytest

from app.ha.config import HaConfig
from app.ha.frames import TransferFrame
from tests.unit.ha.lab import Replicated
from tests.unit.ha.masters import ack_all, grant, join

RATE = 200_000
CONFIG = HaConfig(
    ha_flow_control=True,
    ha_max_transfer_bytes_per_s=RATE,
    ha_window_bytes=10_000_000,
    ha_housekeeping_interval_ms=60_000,
    ha_max_time_slave_not_catchup_ms=60_000,
)


def sent_bytes(master: Replicated, key: str) -> int:
    return sum(len(frame.body) for frame in master.frames(key, TransferFrame))


@pytest.mark.rule("C-07")
def test_a_slave_that_catches_up_gets_its_quota() -> None:
    master = Replicated(config=CONFIG)
    master.lead()
    for _ in range(20):
        master.append(b"x" * 50_000)
    key = join(master, at=0)
    got = sent_bytes(master, key)
    assert 0 < got < RATE
    for _ in range(20):
        master.tick(100)
    seconds = 2
    assert 0.9 * RATE * seconds < sent_bytes(master, key) <= 1.1 * RATE * seconds


@pytest.mark.rule("C-12", "C-07")
def test_a_member_of_the_set_is_sent_every_append_at_once() -> None:
    master = Replicated(config=CONFIG)
    master.lead()
    key = join(master)
    grant(master, (1, 2))
    master.take()
    before = master.log.end_offset
    for _ in range(10):
        master.append(b"x" * 50_000)
    assert sent_bytes(master, key) == master.log.end_offset - before > 2 * RATE
    ack_all(master, key)
    assert master.core.committed_index == master.log.end_index
