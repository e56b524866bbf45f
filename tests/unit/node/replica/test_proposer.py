"""Timestamps of the batches of a leader."""

from pathlib import Path

from tests.unit.node.replica.driver_support import Node, Seams, result


class WallClock(Seams):
    """A clock of the machine that an operator sets."""

    wall_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.wall_ms


def test_timestamps_never_fall_whatever_happens_to_the_clock(tmp_path: Path) -> None:
    """Reads from a timestamp find their first record by bisection."""
    node = Node(tmp_path)
    first_ms = result(node.append()).timestamp_ms
    node.seams = clock = WallClock(now=node.seams.now)
    clock.wall_ms = first_ms - 60_000
    node.driver = node.open()  # the next leader's clock is late
    node.driver.start()
    clock.run()
    opening = node.driver.log.batch_at(node.driver.log.end_index)
    assert (opening.is_control, opening.timestamp_ms) == (True, first_ms)
    stamped = []
    for wall_ms in (first_ms - 50_000, first_ms + 5, first_ms + 5, first_ms - 1, first_ms + 7):
        clock.wall_ms = wall_ms
        stamped.append(result(node.append()).timestamp_ms - first_ms)
    assert stamped == [0, 5, 5, 5, 7]
