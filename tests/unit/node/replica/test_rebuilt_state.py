"""A state that its replica rebuilds from the log: in pieces, while nothing else happens in that log."""

from pathlib import Path

import pytest

from app.errors import NoLeader
from app.ha.auto_switch.core import AutoSwitchCore
from app.ha.config import HaConfig
from app.ha.frames import ClassicFrame
from app.ha.messages import OUTGOING
from app.ha.roles import MANAGER, KnownReplica, Lease, MasterRole
from app.log.contract import Ready, Role
from app.log.state import LogState
from app.node.opening.replica_modes import AutoSwitchMode
from storage.errors import CorruptLog
from storage.format.batch import AppendMark, Batch
from storage.format.records import encode_control
from tests.unit.log.test_state import DIGEST
from tests.unit.node.replica.driver_support import Node, classic_slave
from tests.unit.raft.support import MemoryLog, body_of

COUNT = 20  # batches of the log, after its first one
NEXT_MASTER = (KnownReplica(1, "n1", "n1:1"), KnownReplica(2, "n2", "n2:1"))


def log_of_n2() -> MemoryLog:
    """A log of COUNT appends, each with a key, after the opening of epoch 1."""
    log = MemoryLog()
    log.write([log.stamp(encode_control({"kind": "term", "leader": "n2"}), 1, control=True)])
    for number in range(1, COUNT + 1):
        marks = (AppendMark(0, 1, f"k{number}", digest=DIGEST),)
        log.write([log.stamp(body_of(1, b"v"), 1, marks=marks)])
    return log


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Applied batches by their index. One batch is applied in a turn."""
    monkeypatch.setattr("app.node.state.state_transfer.REBUILD_BYTES", 1)
    indexes: list[int] = []
    apply = LogState.apply

    def counted(state: LogState, batch: Batch) -> None:
        indexes.append(batch.base_index)
        apply(state, batch)

    monkeypatch.setattr(LogState, "apply", counted)
    return indexes


def put_off(node: Node, first_index: int) -> None:
    """Let n1 hold the log of n2 from `first_index` on, without the state before it."""
    batches = log_of_n2().batches
    log = node.driver.log
    log.reset(first_index, batches[first_index].offset)
    log.append(batches[first_index:])
    node.seams.run()


def elected_uncleanly(node: Node) -> None:
    """Deliver the election of n1 by an operator; the disk has written the epoch on return."""
    node.driver.deliver(MANAGER, Lease(node.seams.now + 1_000_000))
    node.driver.deliver(MANAGER, MasterRole(2, (1,), 1, NEXT_MASTER, 2))
    node.seams.turn()
    node.seams.work.popleft()()


@pytest.fixture
def master(tmp_path: Path) -> Node:
    """n1 in controller mode, without a role; its log begins at 2, and the state before that is missing."""
    mode = AutoSwitchMode(replicas=("n1", "n2"), config=HaConfig(), address="n1:1")
    node = Node(tmp_path, mode=mode)
    put_off(node, 2)
    node.driver._state.judge_electable()
    assert not node.driver._core.electable
    return node


@pytest.mark.rule("C-05", "D-28")
def test_a_master_that_lacks_the_state_rebuilds_it_in_pieces_before_it_opens_its_epoch(
    master: Node, applied: list[int]
) -> None:
    """Otherwise the heartbeats of the node, and all other logs, would wait while a long log is replayed."""
    elected_uncleanly(master)
    log, answers = master.driver.log, master.ask(b"new", idempotency_key="k20")
    end_index = log.end_index
    for _ in range(COUNT // 2 - 1):
        before = len(applied)
        assert (log.end_index, answers) == (end_index, [])
        assert not master.driver._core.electable
        master.driver.tick()
        master.seams.turn()
        assert len(applied) - before == 2  # by the tick, and by the turn
    master.seams.run()
    assert (master.driver.role, master.driver.committed_index) == (Role.MASTER, end_index + 1)
    assert isinstance(master.driver._core, AutoSwitchCore)
    assert master.driver._core.accepts_appends
    found = [master.driver.state.find_key(f"k{number}") is not None for number in (1, 2, 20)]
    assert found == [False, True, True]


@pytest.mark.rule("C-05")
def test_the_core_gets_no_earlier_time_after_the_last_piece_than_with_it(
    master: Node, applied: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A piece takes long: what follows it in the same turn happens after it."""
    elected_uncleanly(master)
    seams, driver, times = master.seams, master.driver, list[int]()
    read_batches = driver.log.read_batches

    def slow(index: int, max_bytes: int) -> list[Batch]:
        seams.now += 100
        return read_batches(index, max_bytes)

    monkeypatch.setattr(driver.log, "read_batches", slow)
    core = driver._core
    advance, tick = core.advance, core.tick

    def advanced(ready: Ready, now_ms: int) -> None:
        times.append(now_ms)
        advance(ready, now_ms)

    def ticked(now_ms: int) -> None:
        times.append(now_ms)
        tick(now_ms)

    monkeypatch.setattr(core, "advance", advanced)
    monkeypatch.setattr(core, "tick", ticked)
    for _ in range(COUNT):
        driver.tick()
    assert len(times) > 1
    assert times == sorted(times)


@pytest.mark.rule("D-26")
def test_an_append_that_waits_for_the_state_until_its_deadline_is_refused_with_the_reason(
    master: Node, applied: list[int]
) -> None:
    elected_uncleanly(master)
    answers = master.ask(b"new", timeout_ms=500)
    master.seams.now += 500
    master.driver.tick()
    [refusal] = answers
    assert isinstance(refusal, NoLeader)
    assert "the log's state is being rebuilt: nothing was applied" in refusal.detail


@pytest.mark.rule("C-05", "R-01")
def test_a_copy_whose_log_is_damaged_opens_no_epoch_before_its_state_is_rebuilt(
    master: Node, applied: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    elected_uncleanly(master)
    log = master.driver.log
    end_index = log.end_index
    master.seams.turn()

    def read_batches(*_: object) -> list[Batch]:
        raise CorruptLog("segment", 1, "checksum")

    monkeypatch.setattr(log, "read_batches", read_batches)
    master.seams.run()
    assert [type(error) for _, error in master.seams.failures] == [CorruptLog]
    assert (master.driver.has_ended, log.end_index) == (True, end_index)


@pytest.mark.rule("R-09", "C-05")
def test_a_stop_waits_for_the_state_that_is_being_rebuilt(master: Node, applied: list[int]) -> None:
    """A stop saves a complete state."""
    elected_uncleanly(master)
    stopped: list[None] = []
    answers = master.ask(b"new")
    master.driver.stop(lambda: stopped.append(None))
    assert (stopped, master.driver.has_ended) == ([], False)
    master.seams.run()
    assert (len(stopped), len(answers)) == (1, 1)
    assert master.driver.state.applied_index == master.driver.log.end_index
    assert not master.seams.failures


@pytest.mark.rule("D-28", "H-07")
def test_a_slave_that_forgets_its_state_rebuilds_it_in_pieces_before_it_stores_the_next_epoch(
    tmp_path: Path, applied: list[int]
) -> None:
    """Until then its readers get what they got before, and an end of the driver leaves the log as it is."""
    node = classic_slave(tmp_path)
    log = log_of_n2()
    node.driver.deliver(f"{OUTGOING}1", ClassicFrame(0, b"".join(bytes(batch.data) for batch in log.batches)))
    node.seams.run()
    assert node.driver.log.end_index == COUNT
    ahead = LogState()
    for batch in log.batches:
        ahead.apply(batch)
    ahead.apply(log.stamp(body_of(1, b"v"), 1, marks=(AppendMark(0, 1, "lost", digest=DIGEST),)))
    ahead.committed(COUNT + 1)
    node.driver.state.become(ahead)
    log.write([log.stamp(encode_control({"kind": "term", "leader": "n2"}), 2, control=True)])
    opening = log.batches[-1]
    applied.clear()
    node.driver.deliver(f"{OUTGOING}1", ClassicFrame(opening.offset, bytes(opening.data)))
    state = node.driver.state
    for _ in range(COUNT):
        before = len(applied)
        assert (node.driver.log.end_index, state.applied_index) == (COUNT, COUNT + 1)
        assert state.find_key("lost") is not None
        node.seams.turn()
        assert len(applied) - before == 1
    node.seams.run()
    assert (node.driver.log.end_index, state.applied_index) == (COUNT + 1, COUNT + 1)
    assert state.find_key("lost") is None
    assert all(state.find_key(f"k{number}") for number in range(1, COUNT + 1))
