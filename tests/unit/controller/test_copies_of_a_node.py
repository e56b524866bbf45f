"""ReplicasManager: a copy of a log that was taken out, replaced, restored or registered late."""

import pytest

from app.controller.commands import (
    ApplyForReplicaId,
    ChangeLog,
    Done,
    ElectMaster,
    RegisterReplica,
    StepDown,
)
from app.controller.replicas_manager import (
    ControllerRequest,
    SendToCore,
)
from app.ha.roles import MasterRole, SlaveRole
from app.log.contract import Role
from tests.unit.controller.support import CONFIG
from tests.unit.controller.test_replicas_manager import Bench


@pytest.mark.rule("C-03")
def test_a_copy_that_was_taken_out_and_is_back_is_another_replica() -> None:
    """Both changes may reach its node at once, so that the copy was open all the time."""
    bench = Bench()
    bench.become_master()
    old = bench.manager.replica_id
    older = bench.quorum.log()
    bench.reported()
    generation = older.generation
    bench.quorum.done(ChangeLog("a", {"replicas": ("n2", "n3")}, "out", None, generation, force=True))
    bench.quorum.done(ChangeLog("a", {"replicas": ("n1", "n2", "n3")}, "in", None, generation))
    assert [type(message) for message in bench.reported()] == [SlaveRole]
    identity = bench.save()
    assert identity.replica_id == 0
    bench.answer(bench.ask(ApplyForReplicaId))
    bench.save()
    bench.answer(bench.ask(RegisterReplica))
    assert bench.manager.replica_id > old


@pytest.mark.rule("C-03", "C-10")
def test_a_copy_follows_no_master_once_the_metadata_name_a_later_copy_of_its_node() -> None:
    """It would introduce itself as that one."""
    bench = Bench()
    bench.become_master()
    bench.quorum.join_all()
    bench.quorum.active.liveness.given_up("a", bench.quorum.now_ms)
    bench.quorum.done(ElectMaster("a", "n3", False, 1))
    bench.reported()
    bench.quorum.register("n1", code="a later copy")
    (role,) = bench.reported()
    assert isinstance(role, SlaveRole)
    assert (role.master_id, role.master_epoch) == (None, 2)


@pytest.mark.rule("C-03", "A-01")
def test_an_older_copy_of_a_folder_takes_up_no_epoch_that_another_has_followed() -> None:
    """Its metadata are of the moment of its own election. It would open that epoch again, with other records;
    a slave that has not heard of the next epoch either would remove acknowledged records."""
    bench = Bench()
    bench.become_master()
    identity = bench.manager._identity
    before = bench.quorum.metadata.copy()
    bench.quorum.join_all()
    bench.quorum.active.liveness.given_up("a", bench.quorum.now_ms)
    bench.quorum.done(ElectMaster("a", "n3", False, 1))
    bench.start(identity)
    bench.view.log_epoch, bench.view.max_offset = 1, 1_000  # all that the controllers know it to have held
    bench.answer(bench.ask(RegisterReplica))
    assert bench.manager.replica_id
    actions = bench.manager.step(before, bench.view, bench.quorum.now_ms, 10_000)
    assert not any(isinstance(action, SendToCore) for action in actions)
    (role,) = bench.reported()
    assert isinstance(role, SlaveRole)
    assert role.master_id == 3


@pytest.mark.rule("C-03", "A-01")
def test_a_copy_opens_no_epoch_of_which_it_was_master_before_its_registration() -> None:
    """The incarnation before may have opened it, which an older copy of the folder does not show."""
    bench = Bench()
    bench.become_master()
    assert (bench.quorum.log().master_epoch, bench.quorum.log().opened_epoch) == (1, 0)
    bench.start(bench.manager._identity)
    bench.answer(bench.ask(RegisterReplica))
    actions = bench.step()
    (role,) = [action.message for action in actions if isinstance(action, SendToCore)]
    assert isinstance(role, SlaveRole)
    assert role.master_id is None
    (request,) = [action.command for action in actions if isinstance(action, ControllerRequest)]
    assert isinstance(request, StepDown)
    bench.answer(request)
    (role,) = bench.reported()
    assert isinstance(role, MasterRole)
    assert role.master_epoch == 2


@pytest.mark.rule("C-05")
def test_a_restarted_master_gives_its_epoch_up_even_if_the_metadata_do_not_arrive() -> None:
    """While its disk hangs its node stores none, and the controllers would grant it lease after lease."""
    bench = Bench()
    bench.become_master()
    bench.quorum.join_all()
    before = bench.quorum.metadata.copy()
    bench.quorum.done(ChangeLog("a", {"min_in_sync_replicas": 2}, "later"))
    bench.start(bench.manager._identity)
    bench.view.log_epoch, bench.view.max_offset = 1, 1_000
    bench.answer(bench.ask(RegisterReplica))
    actions = bench.manager.step(before, bench.view, bench.quorum.now_ms, 10_000)
    (request,) = [action.command for action in actions if isinstance(action, ControllerRequest)]
    assert request == StepDown("a", bench.quorum.log().generation, 1, 1, False, None)
    assert not any(isinstance(action, SendToCore) for action in actions)
    assert bench.quorum.heartbeat("n1").granted == (("a", 1),)
    bench.answer(request)
    assert bench.quorum.log().master_epoch == 2


@pytest.mark.rule("C-03")
def test_older_metadata_do_not_take_a_copy_out() -> None:
    bench = Bench()
    before = bench.quorum.metadata.copy()
    bench.become_master()
    bench.reported()
    replica_id = bench.manager.replica_id
    bench.manager.step(before, bench.view, bench.quorum.now_ms, 10_000)
    assert bench.manager.replica_id == replica_id


@pytest.mark.rule("A-11", "C-12")
def test_the_controllers_hear_of_a_mastership_given_up_when_the_core_acts_no_more_and_where_it_ends() -> None:
    bench = Bench()
    bench.become_master()
    bench.reported()
    bench.view.role, bench.view.epoch, bench.view.confirm_offset = Role.MASTER, 1, 40
    bench.step()
    bench.manager.leave()
    assert [type(action) for action in bench.step()] == [SendToCore]  # the core has not taken it in yet
    bench.view.role, bench.view.confirm_offset = Role.SLAVE, 45
    command = bench.ask(StepDown)
    assert (command.leaving, command.confirmed) == (True, 45)


@pytest.mark.rule("C-12")
def test_a_process_that_was_not_master_in_the_epoch_does_not_report_what_was_acknowledged() -> None:
    bench = Bench()
    bench.become_master()
    bench.reported()
    bench.view.needs_election, bench.view.epoch, bench.view.confirm_offset = True, 1, 40
    assert bench.ask(StepDown).confirmed is None


def register_late(bench: Bench) -> None:
    """A registration of an earlier incarnation, at another address, arrives after the present one."""
    assert bench.manager._identity is not None
    code, replica_id = bench.manager._identity.check_code, bench.manager.replica_id
    generation = bench.quorum.log().generation
    bench.quorum.done(RegisterReplica("a", generation, "n1", replica_id, code, "n1:1", 0, 0))
    found = bench.quorum.log().of_node("n1")
    assert found is not None
    assert found.address == "n1:1"


@pytest.mark.rule("C-03")
def test_a_copy_whose_address_was_replaced_by_an_earlier_one_registers_again_and_remains_master() -> None:
    bench = Bench()
    bench.become_master()
    bench.reported()
    register_late(bench)
    command = bench.ask(RegisterReplica)
    assert command.max_offset is None  # what it held at its start was checked then
    assert not [action for action in bench.step() if isinstance(action, ControllerRequest)]
    bench.answer(command)
    found = bench.quorum.log().of_node("n1")
    assert found is not None
    assert found.address == "n1:10911"
    bench.quorum.pass_time(CONFIG.retry_interval_ms)
    actions = bench.step()
    assert not [action for action in actions if isinstance(action, ControllerRequest)]
    roles = [action.message for action in actions if isinstance(action, SendToCore)]
    assert [type(role) for role in roles] == [MasterRole]


@pytest.mark.rule("C-03")
def test_an_answer_about_the_address_of_a_copy_that_was_taken_out_since_registers_no_other() -> None:
    bench = Bench()
    bench.become_master()
    bench.reported()
    register_late(bench)
    command = bench.ask(RegisterReplica)
    bench.manager._forget_identity()
    bench.manager.answered(command, Done(bench.quorum.metadata.applied_index), bench.quorum.now_ms)
    bench.register()
    assert bench.manager.replica_id == 4
