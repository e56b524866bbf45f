"""The ReplicasManagers of a node: when its copies may be counted on."""

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.controller.commands import Done
from app.controller.config import ControllerConfig
from app.controller.messages import BrokerHeartbeatAnswer
from app.controller.metadata import Log
from app.controller.state_machine import Metadata
from app.node.metadata.replica_managers import ManagedReplica, ReplicasManagers
from storage.errors import StorageFull
from tests.support.memory_files import MemoryFiles
from tests.unit.controller.support import Quorum
from tests.unit.controller.test_replicas_manager import View


@pytest.mark.rule("C-05", "C-10")
def test_without_the_metadata_a_node_reports_no_copy_so_that_others_take_over() -> None:
    """Its copy of `__controller` is in repair: no role or set reaches its masters, and their lease ends."""
    known: list[Metadata | None] = [Metadata()]
    unused: Any = None
    services: Any = SimpleNamespace(
        node_id="n1",
        files=MemoryFiles(Random(1)),
        data_folder="data",
        disk=unused,
        clock=unused,
        random=Random(1),
        fail=lambda _what, error: None,
    )
    managers = ReplicasManagers(
        services, ControllerConfig(), metadata=lambda: known[0], controller=lambda: None, client=unused
    )
    view: Any = View()
    managers.attach("a", 0, unused, view, "n1:1", lambda: True)
    assert [report.log for report in managers.reports()] == ["a"]
    known[0] = None
    assert managers.reports() == ()


class Counted(tuple[Any, ...]):
    """Counts how often it is walked through."""

    walks = 0

    def __iter__(self) -> Any:
        Counted.walks += 1
        return super().__iter__()


def test_the_work_of_an_answer_does_not_grow_with_the_square_of_the_logs() -> None:
    """An answer to one log's request concerns that log alone; one to a heartbeat is looked through once."""
    quorum, names = Quorum(), [f"log-{number}" for number in range(50)]
    steps, asked, saved = [0], list[Any](), list[Any]()

    def log(name: str) -> Log | None:
        steps[0] += 1
        return quorum.metadata.log(name)

    lane = SimpleNamespace(submit=lambda work, then: saved.append(then))
    services: Any = SimpleNamespace(
        node_id="n1",
        files=MemoryFiles(Random(1)),
        data_folder="data",
        disk=SimpleNamespace(lane=lambda _name: lane),
        clock=SimpleNamespace(monotonic_ms=lambda: 0),
        random=Random(1),
        fail=lambda _what, error: None,
    )
    client: Any = SimpleNamespace(ask=lambda _command, answered, _timeout_ms: asked.append(answered))
    metadata: Any = SimpleNamespace(log=log, applied_index=9)
    controller: Any = SimpleNamespace(log=SimpleNamespace(durable_index=9, first_index=0))
    managers = ReplicasManagers(
        services,
        ControllerConfig(),
        metadata=lambda: metadata,
        controller=lambda: controller,
        client=client,
    )
    view, driver = cast(Any, View()), cast(Any, None)
    for name in names:
        managers.attach(name, quorum.create(name).generation, driver, view, "n1:1", lambda: True)
    managers.heartbeat_answered(
        BrokerHeartbeatAnswer(1, "c1", 1, Counted((name, 1) for name in names), leases=(900,) * 50), 0
    )
    assert (Counted.walks, steps[0]) == (1, 50)
    for then in saved:
        then(None, None)
    assert (len(saved), len(asked), steps[0]) == (50, 50, 100)
    for answered in [*asked]:
        answered(Done(1, value=7))
    assert (len(saved), len(asked), steps[0]) == (100, 50, 150)


@pytest.mark.rule("A-11", "C-05")
def test_each_copy_gets_its_own_part_of_an_answer_and_all_are_asked_to_leave() -> None:
    taken: dict[str, Any] = {}
    left: list[str] = []
    unused: Any = None
    client: Any = SimpleNamespace(heartbeat_now=lambda: None)
    known: list[Any] = [SimpleNamespace(log=lambda name: name)]
    services: Any = SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: 0))
    controller: Any = SimpleNamespace(log=SimpleNamespace(durable_index=7, first_index=3))
    managers = ReplicasManagers(
        services, ControllerConfig(), metadata=lambda: known[0], controller=lambda: controller, client=client
    )
    steps: list[tuple[str, int]] = []

    class Manager:
        def __init__(self, name: str) -> None:
            self.name = name

        def heartbeat_answered(self, *given: Any) -> None:
            taken[self.name] = given

        def step(self, _metadata: Any, _view: Any, _now_ms: int, durable_index: int) -> list[Any]:
            steps.append((self.name, durable_index))
            return []

        def leave(self) -> None:
            left.append(self.name)

        def has_left(self, log: Any) -> bool:
            assert log == self.name
            return log != "c"

    for name in ("a", "b", "c", "closed"):
        manager: Any = Manager(name)
        managers._replicas[name] = ManagedReplica(
            manager, unused, unused, unused, lambda name=name: name != "closed"
        )
    answer = BrokerHeartbeatAnswer(
        1, "c1", 9, (("b", 4), ("a", 5)), ("c",), ("n1", "n2"), leases=(900, 700), withheld_epochs=(6,)
    )
    managers.heartbeat_answered(answer, 77)
    alive = ("n1", "n2")
    assert taken == {
        "a": ((("a", 5),), (), alive, 77, (700,), ()),
        "b": ((("b", 4),), (), alive, 77, (900,), ()),
        "c": ((), ("c",), alive, 77, (), (6,)),
        "closed": ((), (), alive, 77, (), ()),
    }
    assert steps == [("a", 7), ("b", 7), ("c", 7)]
    assert not managers.leave()
    assert left == ["a", "b", "c", "closed"]
    assert len(steps) == 6
    managers.detach("c")
    assert managers.leave()
    controller.log = SimpleNamespace(durable_index=-1, first_index=3)  # all before 3 came with the state
    managers.tick()
    assert steps[-1] == ("b", 2)
    known[0] = None
    assert managers.leave()


@pytest.mark.rule("C-03")
def test_an_identity_that_a_full_disk_refuses_is_stored_again_after_a_pause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each tick would write to that disk, and a line to the node's log."""
    quorum, saved, now_ms = Quorum(), list[Any](), [0]
    generation = quorum.create("a").generation
    services: Any = SimpleNamespace(
        node_id="n1",
        files=MemoryFiles(Random(1)),
        data_folder="data",
        disk=SimpleNamespace(
            lane=lambda _name: SimpleNamespace(submit=lambda work, then: saved.append(then))
        ),
        clock=SimpleNamespace(monotonic_ms=lambda: now_ms[0]),
        random=Random(1),
        fail=lambda what, error: pytest.fail(f"{what}: {error}"),
    )
    controller: Any = SimpleNamespace(log=SimpleNamespace(durable_index=9, first_index=0))
    unused: Any = None
    managers = ReplicasManagers(
        services,
        ControllerConfig(),
        metadata=lambda: quorum.metadata,
        controller=lambda: controller,
        client=cast(Any, SimpleNamespace(ask=lambda *_: None)),
    )
    managers.attach("a", generation, unused, cast(Any, View()), "n1:1", lambda: True)
    for _ in range(100):
        managers.tick()
        while saved:
            saved.pop()(None, StorageFull("data/logs/a/replica", "write", "no space left"))
        now_ms[0] += 20
    assert len(caplog.records) == 2  # in two seconds
    managers.tick()
    [stored] = saved
    stored(None, None)
    assert managers._replicas["a"].manager._identity is not None
    assert not managers._replicas["a"].manager._saving
