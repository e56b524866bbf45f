"""ReplicasManager: metadata become roles, wishes requests, old metadata nothing (C-03, C-10)."""

from random import Random
from typing import Any

import pytest

from app.controller.commands import (
    AlterSyncStateSet,
    AnyCommand,
    ApplyForReplicaId,
    ChangeLog,
    Done,
    ElectMaster,
    Reason,
    Refusal,
    RegisterReplica,
    StepDown,
)
from app.controller.replicas_manager import (
    Action,
    ControllerRequest,
    CopyIdentity,
    HeartbeatNow,
    ReplicasManager,
    Save,
    SendToCore,
)
from app.controller.state_machine import Metadata
from app.ha.roles import Lease, MasterRole, RoleMessage, SetRequest, SlaveRole, SyncStateSetUpdate
from app.log.contract import Role
from tests.unit.controller.support import CONFIG, Quorum


class View:
    """A core as the manager sees it."""

    role = Role.SLAVE
    epoch = log_epoch = max_offset = confirm_offset = 0
    set_request: SetRequest | None = None
    needs_election = False
    electable = True
    has_room = True


class Bench:
    """The manager of n1 beside a quorum that carries out what it asks."""

    def __init__(self, identity: CopyIdentity | None = None) -> None:
        self.quorum = Quorum()
        self.quorum.create()
        self.view = View()
        self._starts = 0
        self.start(identity)

    def start(self, identity: CopyIdentity | None) -> None:
        self._starts += 1  # each incarnation draws other check codes
        self.manager = ReplicasManager(
            log="a",
            generation=self.quorum.log().generation,
            node="n1",
            address="n1:10911",
            identity=identity,
            config=CONFIG,
            random=Random(self._starts),
        )

    def step(self) -> list[Action]:
        metadata = self.quorum.metadata
        return self.manager.step(metadata, self.view, self.quorum.now_ms, metadata.applied_index)

    def ask(self, kind: type[AnyCommand]) -> Any:
        """The next step asks exactly this."""
        asks = [action.command for action in self.step() if isinstance(action, ControllerRequest)]
        assert [type(command) for command in asks] == [kind]
        return asks[0]

    def answer(self, command: AnyCommand) -> None:
        self.quorum.heartbeats()
        self.manager.answered(command, self.quorum.ask(command), self.quorum.now_ms)

    def save(self) -> CopyIdentity:
        saves = [action for action in self.step() if isinstance(action, Save)]
        assert len(saves) == 1
        self.manager.saved(saves[0].identity)
        return saves[0].identity

    def register(self) -> None:
        self.save()
        self.answer(self.ask(ApplyForReplicaId))
        self.save()
        self.answer(self.ask(RegisterReplica))

    def reported(self) -> list[RoleMessage]:
        return [action.message for action in self.step() if isinstance(action, SendToCore)]

    def become_master(self) -> None:
        self.register()
        for node in ("n2", "n3"):
            self.quorum.register(node)
        self.quorum.heartbeats()
        self.quorum.scan()
        assert self.quorum.log().master_node == "n1"


@pytest.mark.rule("C-03")
def test_the_check_code_is_durable_before_the_id_is_asked_for_and_the_id_before_it_is_registered() -> None:
    bench = Bench()
    (action,) = bench.step()
    assert isinstance(action, Save)
    assert bench.step() == [action]  # not saved yet: nothing is asked
    bench.manager.saved(action.identity)
    bench.answer(bench.ask(ApplyForReplicaId))
    (action,) = bench.step()
    assert action == Save(CopyIdentity(action.identity.check_code, 1))  # type: ignore[union-attr]
    bench.manager.saved(action.identity)  # type: ignore[union-attr]
    bench.answer(bench.ask(RegisterReplica))
    assert bench.manager.replica_id == 1
    assert HeartbeatNow() in bench.step()


@pytest.mark.rule("C-03")
@pytest.mark.parametrize("crash_after", ["code saved", "applied", "id saved", "registered"])
def test_a_crash_between_any_two_steps_gives_no_second_id(crash_after: str) -> None:
    bench = Bench()
    identity = bench.save()
    if crash_after != "code saved":
        bench.answer(bench.ask(ApplyForReplicaId))
        if crash_after != "applied":
            identity = bench.save()
            if crash_after == "registered":
                bench.answer(bench.ask(RegisterReplica))
    bench.start(identity)  # what stood on the disk
    if identity.replica_id == 0:
        bench.answer(bench.ask(ApplyForReplicaId))
        bench.save()
    bench.answer(bench.ask(RegisterReplica))
    assert bench.manager.replica_id == 1
    assert len(bench.quorum.log().replicas) == 1


@pytest.mark.rule("C-03")
def test_an_identity_that_another_copy_has_replaced_is_given_up() -> None:
    bench = Bench()
    bench.register()
    bench.quorum.register("n1", code="another disk")
    bench.start(CopyIdentity("an old code", 1))
    bench.answer(bench.ask(RegisterReplica))
    bench.quorum.pass_time(CONFIG.heartbeat_interval_ms)
    bench.register()
    assert bench.manager.replica_id == 3


@pytest.mark.rule("C-10")
def test_unanswered_requests_are_asked_again_and_late_answers_are_ignored() -> None:
    bench = Bench()
    bench.save()
    command = bench.ask(ApplyForReplicaId)
    assert bench.step() == []  # one at a time
    bench.manager.answered(command, None, bench.quorum.now_ms)
    assert bench.step() == []  # with a pause
    bench.quorum.pass_time(CONFIG.retry_interval_ms)
    again = bench.ask(ApplyForReplicaId)
    bench.manager.answered(command, Done(0, value=99), bench.quorum.now_ms)  # the first one's, late
    bench.answer(again)
    assert bench.save().replica_id == 1


@pytest.mark.rule("C-10", "C-04")
def test_roles_follow_the_metadata_and_the_set_is_recognised_by_its_epoch() -> None:
    bench = Bench()
    bench.register()
    assert [type(message) for message in bench.reported()] == [SlaveRole]  # there is no master yet
    for node in ("n2", "n3"):
        bench.quorum.register(node)
    bench.quorum.heartbeats()
    bench.quorum.scan()
    actions = bench.step()
    assert HeartbeatNow() in actions  # it has no lease yet
    (role,) = [action.message for action in actions if isinstance(action, SendToCore)]
    assert isinstance(role, MasterRole)
    assert (role.master_epoch, role.sync_state_set, role.sync_state_set_epoch) == (1, (1,), 1)
    assert [(replica.id, replica.node) for replica in role.replicas] == [(1, "n1"), (2, "n2"), (3, "n3")]
    assert bench.reported() == []
    bench.quorum.join_all()
    assert bench.reported() == [SyncStateSetUpdate(1, 2, (1, 2, 3))]
    bench.quorum.active.liveness.given_up("a", bench.quorum.now_ms)
    bench.quorum.done(ElectMaster("a", "n3", False, 1))
    (slave,) = bench.reported()
    assert isinstance(slave, SlaveRole)
    assert (slave.master_id, slave.master_epoch) == (3, 2)


@pytest.mark.rule("A-11", "C-10")
def test_a_lease_counts_for_the_epoch_that_it_was_granted_for() -> None:
    bench = Bench()
    bench.become_master()
    bench.quorum.open_epoch()
    bench.reported()
    answer = bench.quorum.heartbeat("n1")
    assert answer.granted == (("a", 1),)

    def hear(granted: tuple[tuple[str, int], ...], sent_ms: int) -> None:
        bench.manager.heartbeat_answered(granted, (), answer.alive, sent_ms)

    hear((("a", 1), ("b", 7)), 15_000)
    assert bench.reported() == [Lease(15_000 + CONFIG.lease_ms)]
    assert bench.reported() == []
    hear((("a", 2),), 16_000)  # of an election that this node has not heard of yet: it waits
    assert bench.reported() == []
    bench.quorum.done(StepDown("a", bench.quorum.log().generation, 1, 1))
    role, lease = bench.reported()
    assert isinstance(role, MasterRole)
    assert (role.master_epoch, lease) == (2, Lease(16_000 + CONFIG.lease_ms))
    hear((("a", 1),), 17_000)  # of the epoch before
    assert bench.reported() == []


@pytest.mark.rule("C-06", "C-10")
def test_the_wanted_set_is_asked_for_with_both_epochs_and_without_the_dead() -> None:
    bench = Bench()
    bench.become_master()
    bench.reported()
    bench.quorum.active.liveness.disconnected("n3")
    answer = bench.quorum.heartbeat("n1")
    assert answer.alive == ("n1", "n2")
    bench.view.set_request = SetRequest(1, 1, (1, 3))
    assert bench.step() == []  # who is alive is not known yet
    bench.manager.heartbeat_answered((), (), answer.alive, bench.quorum.now_ms)
    assert bench.step() == []  # n3 would be refused
    bench.view.set_request = SetRequest(1, 9, (1, 2))
    assert bench.step() == []  # the core knows another set than this node
    bench.view.set_request = SetRequest(1, 1, (1, 2, 3))
    command = bench.ask(AlterSyncStateSet)
    generation, ids = bench.quorum.log().generation, (1, bench.quorum.id_of("n2"))
    assert command == AlterSyncStateSet("a", generation, 1, 1, 1, ids)
    bench.manager.answered(command, Refusal(Reason.STALE_SET_EPOCH, ""), bench.quorum.now_ms)
    assert bench.step() == []
    bench.quorum.pass_time(CONFIG.heartbeat_interval_ms)
    bench.answer(bench.ask(AlterSyncStateSet))
    assert bench.reported() == [SyncStateSetUpdate(1, 2, (1, 2))]


@pytest.mark.rule("C-09", "C-12")
def test_a_master_takes_a_set_only_once_it_is_durable_here() -> None:
    """Controllers that are rebuilt from this copy would take the set before it for the last one."""
    bench = Bench()
    bench.become_master()
    bench.reported()
    bench.quorum.alter("n1", "n2")
    metadata, now_ms = bench.quorum.metadata, bench.quorum.now_ms
    index = metadata.applied_index
    assert bench.manager.step(metadata, bench.view, now_ms, index - 1) == []
    bench.quorum.create("b")  # what follows need not be durable
    (update,) = bench.manager.step(metadata, bench.view, now_ms, index)
    assert update == SendToCore(SyncStateSetUpdate(1, 2, (1, bench.quorum.id_of("n2"))))


@pytest.mark.rule("A-11", "C-09")
def test_a_master_gets_a_lease_only_once_the_opening_of_its_epoch_is_durable_here() -> None:
    """Controllers that are rebuilt from this copy would elect a member of the former set, which lacks what
    this master acknowledged alone."""
    bench = Bench()
    bench.become_master()
    bench.quorum.join_all()
    quorum, manager = bench.quorum, bench.manager
    quorum.done(StepDown("a", quorum.log().generation, 1, 1))
    assert (quorum.log().master, quorum.log().former_set) == (1, (1, 2, 3))
    opening = quorum.metadata.copy()
    bench.reported()
    quorum.offsets["n1", "a"] = (2, 100, 0)
    quorum.heartbeats()
    quorum.scan()
    assert not quorum.log().is_opening
    manager.heartbeat_answered([("a", 2)], [], ("n1", "n2", "n3"), quorum.now_ms, [1_500])
    index = quorum.metadata.applied_index
    for metadata, durable_index in ((opening, index), (quorum.metadata, index - 1)):
        actions = manager.step(metadata, bench.view, quorum.now_ms, durable_index)
        assert not any(isinstance(action, SendToCore) for action in actions)
    quorum.create("b")  # what follows need not be durable
    actions = manager.step(quorum.metadata, bench.view, quorum.now_ms, index)
    assert SendToCore(Lease(quorum.now_ms + 1_500, 2)) in actions


@pytest.mark.rule("C-12")
def test_a_member_that_is_not_alive_leaves_the_set_by_the_word_of_the_core_alone() -> None:
    bench = Bench()
    bench.become_master()
    bench.reported()
    ids = {node: bench.quorum.id_of(node) for node in ("n1", "n2", "n3")}
    bench.view.set_request = SetRequest(1, 1, (1, 2, 3))
    bench.manager.heartbeat_answered((), (), ("n1", "n2", "n3"), bench.quorum.now_ms)
    bench.answer(bench.ask(AlterSyncStateSet))
    bench.reported()
    bench.manager.heartbeat_answered((), (), ("n1", "n3"), bench.quorum.now_ms)
    bench.view.set_request = SetRequest(1, 2, (1, 2))  # without n3; of n2 the core knows nothing yet
    assert bench.step() == []
    bench.quorum.pass_time(CONFIG.retry_interval_ms)
    assert bench.step() == []
    bench.view.set_request = SetRequest(1, 2, (1,))
    assert bench.ask(AlterSyncStateSet).wanted == (ids["n1"],)


@pytest.mark.rule("C-10")
def test_a_set_that_was_granted_is_not_asked_for_again_while_the_change_is_on_its_way() -> None:
    bench = Bench()
    bench.become_master()
    bench.reported()
    bench.manager.heartbeat_answered((), (), ("n1", "n2"), bench.quorum.now_ms)
    bench.view.set_request = SetRequest(1, 1, (1, 2))
    bench.manager.answered(bench.ask(AlterSyncStateSet), Done(7), bench.quorum.now_ms)  # not applied here yet
    assert bench.step() == []
    bench.quorum.pass_time(CONFIG.retry_interval_ms)
    bench.ask(AlterSyncStateSet)


@pytest.mark.rule("C-05", "A-11")
@pytest.mark.parametrize("why", ["withheld", "needs election", "leaves"])
def test_a_mastership_is_given_up_before_the_controller_hears_of_it(why: str) -> None:
    bench = Bench()
    bench.become_master()
    bench.reported()
    if why == "withheld":
        bench.manager.heartbeat_answered((), ("a",), ("n1",), bench.quorum.now_ms)
    elif why == "leaves":
        bench.manager.leave()
    else:
        bench.view.needs_election, bench.view.epoch = True, 1
    actions = bench.step()
    asked = [action.command for action in actions if isinstance(action, ControllerRequest)]
    assert asked == [StepDown("a", bench.quorum.log().generation, 1, 1, why == "leaves")]
    if why != "needs election":  # its core has none to give up
        (tell,) = [action for action in actions if isinstance(action, SendToCore)]
        assert isinstance(tell.message, SlaveRole)
        assert (tell.message.master_id, tell.message.master_epoch) == (None, 1)
        assert actions.index(tell) < actions.index(ControllerRequest(asked[0]))
    bench.manager.heartbeat_answered((("a", 1),), (), ("n1",), bench.quorum.now_ms)
    if why != "needs election":
        assert bench.reported() == []  # a lease that was on its way revives nothing
    bench.answer(asked[0])
    assert bench.manager.has_left(bench.quorum.log()) is (why == "leaves")


@pytest.mark.rule("A-11", "C-10")
def test_a_core_that_has_not_heard_of_its_new_epoch_is_not_taken_to_have_given_it_up() -> None:
    """It could not start the last epoch; it gets this one now, and will be its master."""
    bench = Bench()
    bench.become_master()
    bench.view.needs_election, bench.view.epoch = True, 0
    actions = bench.step()
    assert any(
        isinstance(action, SendToCore) and isinstance(action.message, MasterRole) for action in actions
    )
    assert not any(isinstance(action, ControllerRequest) for action in actions)
    bench.view.epoch = 1  # it has heard, and cannot
    assert bench.ask(StepDown).master_epoch == 1


@pytest.mark.rule("C-10")
def test_a_log_of_another_generation_is_none_of_its_business() -> None:
    bench = Bench()
    bench.manager.generation = 99
    assert bench.step() == []
    assert bench.manager.step(Metadata(), bench.view, 0, 10_000) == []


def test_the_report_is_what_the_core_shows() -> None:
    bench = Bench()
    bench.register()
    bench.view.log_epoch, bench.view.max_offset, bench.view.confirm_offset = 3, 900, 800
    report = bench.manager.report(bench.view)
    assert (report.replica_id, report.epoch, report.max_offset, report.confirm_offset) == (1, 3, 900, 800)
    assert (report.electable, report.has_room) == (True, True)
    bench.view.has_room = False
    assert not bench.manager.report(bench.view).has_room


@pytest.mark.rule("C-03", "C-10")
def test_a_copy_has_no_role_while_the_metadata_here_are_older_than_its_registration() -> None:
    """Its node's name is that of another copy there: it would introduce itself as that one."""
    bench = Bench()
    bench.become_master()
    bench.quorum.join_all()
    bench.quorum.active.liveness.given_up("a", bench.quorum.now_ms)
    bench.quorum.done(ElectMaster("a", "n3", False, 1))
    before = bench.quorum.metadata.copy()
    bench.start(None)  # with an empty disk
    bench.register()
    actions = bench.manager.step(before, bench.view, bench.quorum.now_ms, 10_000)
    assert not any(isinstance(action, SendToCore) for action in actions)
    (role,) = bench.reported()
    assert isinstance(role, SlaveRole)
    assert role.master_id == 3
    assert role.find(bench.manager.replica_id) is not None


@pytest.mark.rule("A-11")
@pytest.mark.parametrize("registered", [True, False])
def test_a_lease_of_a_deleted_log_counts_for_no_later_log_of_its_name(registered: bool) -> None:
    """Its answer is late: the controllers know of no lease for the new log, whose first epoch is 1 too."""
    bench = Bench()
    sent_ms = bench.quorum.now_ms
    bench.quorum.pass_time(CONFIG.heartbeat_interval_ms)
    if not registered:
        bench.manager.heartbeat_answered((("a", 1),), (), ("n1",), sent_ms)
    bench.become_master()
    bench.quorum.open_epoch()
    assert [type(message) for message in bench.reported()] == [MasterRole]
    bench.manager.heartbeat_answered((("a", 1),), (), ("n1",), sent_ms)
    assert bench.reported() == []
    bench.manager.heartbeat_answered((("a", 1),), (), ("n1",), bench.quorum.now_ms)
    assert len(bench.reported()) == 1
    bench.manager.heartbeat_answered((), ("a",), ("n1",), sent_ms, (), (1,))
    assert bench.reported() == []


@pytest.mark.rule("A-11")
def test_a_lease_is_as_long_as_the_answer_grants_and_bound_to_its_epoch() -> None:
    bench = Bench()
    bench.become_master()
    bench.quorum.open_epoch()
    bench.reported()
    bench.manager.heartbeat_answered((("b", 1), ("a", 1)), (), ("n1",), 15_000, (900, 700))
    (lease,) = bench.reported()
    assert isinstance(lease, Lease)
    assert (lease.until_ms, lease.master_epoch) == (15_700, 1)


@pytest.mark.rule("C-06", "C-08")
def test_a_member_that_only_the_controllers_do_not_hear_keeps_no_other_out_for_long() -> None:
    bench = Bench()
    bench.become_master()
    bench.reported()
    ids = {node: bench.quorum.id_of(node) for node in ("n1", "n2", "n3")}
    bench.manager.heartbeat_answered((), (), ("n1", "n2"), bench.quorum.now_ms)
    bench.view.set_request = SetRequest(1, 1, (ids["n1"], ids["n2"]))
    bench.answer(bench.ask(AlterSyncStateSet))
    bench.reported()
    bench.manager.heartbeat_answered((), (), ("n1", "n3"), bench.quorum.now_ms)  # n2 is cut off
    bench.view.set_request = SetRequest(1, 2, tuple(ids.values()))
    bench.quorum.pass_time(CONFIG.retry_interval_ms)
    assert bench.step() == []  # it may be dead, and the core notices that soon
    bench.quorum.pass_time(CONFIG.broker_timeout_ms)
    assert bench.ask(AlterSyncStateSet).wanted == (ids["n1"], ids["n3"])


@pytest.mark.rule("C-12")
@pytest.mark.parametrize("why", ["nobody joins", "below the floor"])
def test_a_member_that_only_the_controllers_do_not_hear_stays_otherwise(why: str) -> None:
    bench = Bench()
    bench.become_master()
    bench.reported()
    ids = {node: bench.quorum.id_of(node) for node in ("n1", "n2", "n3")}
    bench.quorum.done(ChangeLog("a", {"min_in_sync_replicas": 2}, "floor"))
    bench.quorum.join_all()
    bench.reported()
    bench.manager.heartbeat_answered((), (), ("n1",), bench.quorum.now_ms)  # n2 and n3 are cut off
    wanted = tuple(ids.values()) if why == "nobody joins" else (ids["n1"], ids["n2"])
    bench.view.set_request = SetRequest(1, 2, wanted)
    for _ in range(3):
        assert bench.step() == []
        bench.quorum.pass_time(CONFIG.broker_timeout_ms)


@pytest.mark.rule("A-11", "C-05")
def test_a_new_master_hastens_its_first_lease() -> None:
    bench = Bench()
    bench.become_master()
    bench.quorum.join_all()
    bench.quorum.active.liveness.given_up("a", bench.quorum.now_ms)
    bench.quorum.done(ElectMaster("a", "n2", False, 1))
    bench.reported()
    bench.quorum.join_all()
    bench.quorum.active.liveness.given_up("a", bench.quorum.now_ms)
    bench.quorum.done(ElectMaster("a", "n1", False, 2))
    bench.reported()
    assert bench.step() == []
    bench.view.log_epoch, bench.view.max_offset = 3, 900
    assert bench.step() == [HeartbeatNow()]  # the epoch is open here
    bench.quorum.offsets["n1", "a"] = (3, 900, 0)
    bench.quorum.heartbeat("n1")
    bench.quorum.scan()
    assert HeartbeatNow() in bench.step()  # and by the metadata: now a lease is granted
    assert bench.step() == []
    assert bench.quorum.heartbeat("n1").granted == (("a", 3),)
