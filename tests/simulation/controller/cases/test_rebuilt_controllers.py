"""The controllers lose their disks: they decide nothing, and are rebuilt from the brokers' copies."""

from dataclasses import replace as replace_fields
from random import Random

import pytest

from app.controller.events import SKIPPED_EPOCHS, MetadataRebuilt, encode_event
from app.controller.metadata import CONTROLLER_LOG, Log
from app.errors import ConfigError
from app.log.contract import AppendResult
from app.node.metadata.folders import LogFolders
from app.node.metadata.rebuild import NodeFolder, Rebuilt, rebuild
from app.node.repair.marker import Note, RepairMarker
from storage.errors import CorruptFile
from storage.file_system import write_durably
from storage.format.batch import stamp
from storage.format.records import RecordColumns, encode_body
from storage.log.checkpoint import CheckpointFile
from storage.log.commitlog import Commitlog
from storage.log.hard_state import HardState, HardStateFile
from tests.simulation.controller.cases.operations import append_at, master_of, request, truth
from tests.simulation.controller.cluster import HaCluster
from tests.simulation.controller.nemesis import metadata_of
from tests.simulation.controller.node import CONTROLLER_LOG_ID, HaSimNode
from tests.simulation.controller.plan import LOG_NAME, STORAGE, HaPlan
from tests.simulation.world.network import LinkFaults
from tests.support.memory_files import MemoryFiles

CONTROLLERS = ("c1", "c2", "c3")
FOLDER = f"data/logs/{CONTROLLER_LOG}"


def group_in_sync() -> HaCluster:
    plan = HaPlan(brokers=2, faults=False, clients=0, links=LinkFaults(), own_controllers=True)
    cluster = HaCluster(1, plan)
    cluster.run(2)
    append_at(cluster, master_of(cluster), b"acknowledged")
    assert len(truth(cluster).set_nodes) == 2
    cluster.run(1)
    return cluster


def stop(cluster: HaCluster, *names: str, wipe: bool = False) -> None:
    for name in names:
        cluster.nodes[name].crash(power=False)
        if wipe:
            cluster.nodes[name].files = MemoryFiles(Random(3))


def rebuilt(
    cluster: HaCluster, *, replace: bool = False, source: str | None = None, without: str = ""
) -> Rebuilt:
    """without: the node whose folder is on another machine."""
    nodes = [NodeFolder(name, node.files, "data") for name, node in cluster.nodes.items() if name != without]
    return rebuild(
        nodes,
        CONTROLLERS,
        cluster_id="ha",
        storage=STORAGE,
        configured={LOG_NAME: cluster.plan.spec},
        now_ms=1,
        replace=replace,
        source=source,
    )


def add_event(node: HaSimNode, *, terms: int, committed: bool = False) -> None:
    """Add to the copy of a node that is down what a leader of a later term would have added."""
    folder = FOLDER
    vote = HardStateFile(node.files, f"{folder}/vote")
    checkpoints = CheckpointFile(node.files, f"{folder}/checkpoint")
    known = checkpoints.load()
    log = Commitlog.open(
        node.files, folder, log_id=CONTROLLER_LOG_ID, config=STORAGE, committed_index=known.committed_index
    )
    term = vote.load().term + terms
    vote.save(HardState(term))
    records = RecordColumns()
    records.add(encode_event(MetadataRebuilt(log=CONTROLLER_LOG, time_ms=1)))
    log.append(
        (
            stamp(
                encode_body(records),
                log_id=CONTROLLER_LOG_ID,
                base_index=log.next_index,
                term=term,
                timestamp_ms=1,
                offset=log.end_offset,
                previous_chain=log.last_chain,
            ),
        )
    )
    if committed:
        checkpoints.save(replace_fields(known, committed_index=log.end_index))
    log.close()


def both_act(cluster: HaCluster) -> bool:
    """Return whether the copies of both brokers are the same, and a broker leads its log."""
    one, two = log_at(cluster, "n1"), log_at(cluster, "n2")
    return one == two and any(each.acknowledges for each in cluster.brokers)


def log_at(cluster: HaCluster, name: str) -> Log:
    log = cluster.nodes[name].state.metadata.log("default")
    assert log is not None
    return log


@pytest.mark.rule("C-04", "C-09")
@pytest.mark.parametrize("started", [False, True])
def test_the_copies_of_the_brokers_bring_the_controllers_back(started: bool) -> None:
    cluster = group_in_sync()
    before = truth(cluster)
    stop(cluster, *CONTROLLERS, wipe=True)
    learn = cluster.checker._learn
    if started:  # with their empty disks: they begin again, notice it, and decide nothing
        cluster.checker._learn = lambda node: None  # type: ignore[method-assign]  # it is another history
        for name in CONTROLLERS:
            cluster.nodes[name].start()
        stop(cluster, "n1")
        cluster.nodes["n1"].start()
        cluster.run(5)
        assert not any(node.is_active for node in cluster.nodes.values())
        begun_again = [cluster.nodes[name].state.metadata.log("default") for name in CONTROLLERS]
        assert all(log is None or log.master_epoch == 0 for log in begun_again)
        stop(cluster, *CONTROLLERS)
    stop(cluster, "n1", "n2")
    if started:
        with pytest.raises(ConfigError, match="different histories"):
            rebuilt(cluster)
    found = rebuilt(cluster, replace=started)
    assert (found.copied, found.doubts) == (list(CONTROLLERS), {})
    cluster.checker._learn = learn  # type: ignore[method-assign]
    for node in cluster.nodes.values():
        node.start()
    assert cluster.run_until(lambda: any(each.acknowledges for each in cluster.brokers), 10)
    after = log_at(cluster, "n1")
    assert after.master_epoch > before.master_epoch + 1_000
    assert {each.id for each in after.replicas} == {each.id for each in before.replicas}
    master = next(each for each in cluster.brokers if each.acknowledges)
    assert cluster.run_until(lambda: len(log_at(cluster, "n1").set_nodes) == 2, 10)
    got: list[object] = []
    master.append(request(b"after"), got.append)
    assert cluster.run_until(lambda: bool(got), 3)
    assert isinstance(got[0], AppendResult), got
    assert b"acknowledged" in b"".join(bytes(batch.body) for batch in master.log.read_batches(0, 1 << 20))


@pytest.mark.rule("C-09")
@pytest.mark.parametrize("started", [("c1",), CONTROLLERS])
def test_controllers_that_were_started_with_empty_disks_one_after_the_other_get_the_log(
    started: tuple[str, ...],
) -> None:
    """None of them has begun again: their copies are empty, and contradict nothing."""
    cluster = group_in_sync()
    stop(cluster, *CONTROLLERS, wipe=True)
    stop(cluster, "n1", "n2")
    for name in started:
        cluster.nodes[name].start()
        cluster.run(2)
        stop(cluster, name)
    assert rebuilt(cluster).copied == list(CONTROLLERS)
    for node in cluster.nodes.values():
        node.start()
    stop(cluster, "c3")
    assert cluster.run_until(lambda: any(each.acknowledges for each in cluster.brokers), 10)


@pytest.mark.rule("C-09")
def test_an_election_that_no_copy_of_the_metadata_has_is_reported() -> None:
    cluster = group_in_sync()
    stop(cluster, *CONTROLLERS, wipe=True)
    stop(cluster, "n1", "n2")
    folder = "data/logs/default/vote"
    newer = HardStateFile(cluster.nodes["n2"].files, folder)
    newer.save(HardState(9, "n2"))
    found = rebuilt(cluster)
    assert found.doubts == {"default": ("n2", 9)}
    assert [log.lost_history for log in found.logs] == [True]  # the set of the copy elects no master


@pytest.mark.rule("C-04", "C-05", "C-09")
def test_a_log_of_the_configuration_whose_creation_no_copy_has_is_no_new_log() -> None:
    """Its replicas hold acknowledged records: the controllers would elect any of them as the first master."""
    cluster = group_in_sync()
    stop(cluster, *CONTROLLERS, wipe=True)
    stop(cluster, "n1", "n2")
    before = log_at(cluster, "n1").master_epoch
    for name in ("n1", "n2"):
        files = cluster.nodes[name].files
        for file in ("checkpoint", "state"):
            if files.exists(f"{FOLDER}/{file}"):
                files.remove(f"{FOLDER}/{file}")
        log = Commitlog.open(files, FOLDER, log_id=CONTROLLER_LOG_ID, config=STORAGE, committed_index=0)
        log.truncate_after(0)  # the record of the first term
        log.close()
    LogFolders(cluster.nodes["n1"].files, "data").prepare("created since", 1, 1)
    found = rebuilt(cluster)
    assert [log.lost_history for log in found.logs] == [True]
    assert found.doubts == {LOG_NAME: ("n1", before)}
    assert found.unopened == {"created since": ("n1",)}  # the creation that is added takes its index
    assert found.logs[0].master_epoch > before + SKIPPED_EPOCHS - 1
    cluster.checker.rebuilt(metadata_of(cluster.nodes[found.source]))
    for node in cluster.nodes.values():
        node.start()
    cluster.run(1)
    assert cluster.run_until(lambda: both_act(cluster), 20)


@pytest.mark.rule("C-04", "C-09")
@pytest.mark.parametrize("missing", [False, True])
def test_a_damaged_vote_makes_its_log_doubtful(missing: bool) -> None:
    """An earlier rebuild may have skipped a million epochs, and only the damaged file knew of it."""
    cluster = group_in_sync()
    stop(cluster, *CONTROLLERS, wipe=True)
    stop(cluster, "n1", "n2")
    before = log_at(cluster, "n1").master_epoch
    files, path = cluster.nodes["n2"].files, "data/logs/default/vote"
    if missing:
        files.remove(path)
    else:
        write_durably(files, path, bytes(len(files.read(path))))
    found = rebuilt(cluster)
    assert (found.doubts, found.unknown) == ({}, {"default": ("n2",)})
    assert [log.lost_history for log in found.logs] == [True]  # the set of the copy elects no master
    assert found.logs[0].master_epoch > before + 2 * SKIPPED_EPOCHS - 1


@pytest.mark.rule("C-05", "C-09")
def test_a_replica_whose_folder_was_not_there_is_waited_for() -> None:
    """Its metadata are newer than the copy: it became master after that, and has acknowledged alone. A second
    rebuild with its folder brings that back."""
    cluster = group_in_sync()
    old = master_of(cluster)
    new = next(node for node in cluster.brokers if node is not old)
    stop(cluster, old.name)
    assert cluster.run_until(lambda: new.is_master and new.acknowledges, 8)
    append_at(cluster, new, b"acknowledged alone")
    stop(cluster, *CONTROLLERS, wipe=True)
    stop(cluster, new.name)
    learn = cluster.checker._learn
    cluster.checker._learn = lambda node: None  # type: ignore[method-assign]  # it is another history
    found = rebuilt(cluster, without=new.name)
    assert (found.source, found.unknown) == (old.name, {"default": (new.name,)})
    others = [*CONTROLLERS, old.name]
    for name in others:
        cluster.nodes[name].start()
    cluster.run(5)
    assert not old.is_master
    stop(cluster, *others)
    assert rebuilt(cluster, source=new.name).unknown == {}
    cluster.checker.rebuilt(metadata_of(new))
    cluster.checker._learn = learn  # type: ignore[method-assign]
    for node in cluster.nodes.values():
        node.start()
    assert cluster.run_until(lambda: new.is_master and new.acknowledges, 10)
    assert b"acknowledged alone" in b"".join(bytes(batch.body) for batch in new.log.read_batches(0, 1 << 20))


@pytest.mark.rule("C-09", "C-11")
def test_a_learner_whose_folder_is_not_there_may_be_a_replica_by_now() -> None:
    plan = HaPlan(faults=False, clients=0, links=LinkFaults(), own_controllers=True, learner=True)
    cluster = HaCluster(1, plan)
    cluster.run(2)
    stop(cluster, *CONTROLLERS, wipe=True)
    stop(cluster, "n1", "n2", "n3")
    found = rebuilt(cluster, without="n3")
    assert (found.unknown, [log.lost_history for log in found.logs]) == ({"default": ("n3",)}, [True])


@pytest.mark.rule("C-09")
def test_a_log_that_no_copy_of_the_metadata_has_is_not_removed_for_a_new_one_of_its_name() -> None:
    """Its creation is lost, and a client creates it again: what it holds may be all that is left of it."""
    cluster = group_in_sync()
    stop(cluster, *CONTROLLERS, "n1", "n2")
    node = cluster.nodes["n1"]
    folders = LogFolders(node.files, "data")
    index = log_end(node)
    for name, generation in (("created since", index + 1), ("deleted before", index)):
        folders.prepare(name, generation, generation)
        write_durably(node.files, f"data/logs/{name}/records", b"acknowledged")
    for _ in range(2):
        for name in CONTROLLERS:
            cluster.nodes[name].files = MemoryFiles(Random(3))
        assert rebuilt(cluster).unopened == {"created since": ("n1",)}
    with pytest.raises(CorruptFile, match="a later log of this name"):
        folders.prepare("created since", index + 100, index + 100)
    assert node.files.read("data/logs/created since/records") == b"acknowledged"
    folders.prepare("deleted before", index + 100, index + 100)
    assert node.files.list("data/logs/deleted before") == []
    # A newer copy of the metadata is found.
    assert folders.protect({"created since": index + 1, "deleted before": index + 100}, index) == []
    assert folders.make_way("created since", index + 1, index + 1)


def log_end(node: HaSimNode) -> int:
    """The last index of the copy of the metadata of a node that is down."""
    log = Commitlog.open(node.files, FOLDER, log_id=CONTROLLER_LOG_ID, config=STORAGE)
    log.close()
    return log.end_index


@pytest.mark.rule("C-05", "C-09")
@pytest.mark.parametrize("lost", ["copy", "end of a repair", "state after a reset", "choice of the operator"])
def test_a_set_that_the_copy_of_the_metadata_lacks_elects_no_master(lost: str) -> None:
    """The master has acknowledged alone since the set shrank, in the same epoch: the set of the copy that is
    taken names a replica that lacks acknowledged records."""
    cluster = group_in_sync()
    old = master_of(cluster)
    slave = next(node for node in cluster.brokers if node is not old)
    stop(cluster, slave.name)
    assert cluster.run_until(lambda: truth(cluster).set_nodes == (old.name,), 8)
    append_at(cluster, old, b"acknowledged alone")
    stop(cluster, *CONTROLLERS, wipe=True)
    stop(cluster, old.name)
    older = slave.files.copy_folder(FOLDER)
    if lost == "copy":
        for folder in (FOLDER, f"data/journal/{CONTROLLER_LOG}"):
            old.files.put_folder(folder, {})
    elif lost == "end of a repair":
        old.files.put_folder(FOLDER, older)
        RepairMarker(old.files, "data", CONTROLLER_LOG).save(Note("damaged", "scrub", 1))
    elif lost == "state after a reset":  # it was received, and not saved yet
        newer = Commitlog.open(old.files, FOLDER, log_id=CONTROLLER_LOG_ID, config=STORAGE)
        newer.close()
        old.files.put_folder(FOLDER, older)
        log = Commitlog.open(old.files, FOLDER, log_id=CONTROLLER_LOG_ID, config=STORAGE)
        log.reset(newer.next_index, newer.end_offset, newer.last_term)
        log.close()
    found = rebuilt(cluster, source=slave.name)
    assert (found.doubts, [len(log.set_nodes) for log in found.logs]) == ({}, [2])
    if lost == "choice of the operator":
        assert (found.newer_sets, found.unknown) == ({"default": old.name}, {})
    else:
        assert (found.newer_sets, found.unknown) == ({}, {"default": (old.name,)})
    cluster.checker.rebuilt(metadata_of(slave))
    others = [*CONTROLLERS, slave.name]
    for name in others:
        cluster.nodes[name].start()
    cluster.run(5)
    assert not slave.is_master
    old.start()
    assert cluster.run_until(lambda: old.is_master and old.acknowledges, 10)
    assert b"acknowledged alone" in b"".join(bytes(batch.body) for batch in old.log.read_batches(0, 1 << 20))


@pytest.mark.rule("C-09", "C-12")
def test_a_master_acknowledges_by_no_set_that_a_power_failure_could_take_from_its_node() -> None:
    """The record is on its disk, but not the change after which it alone counts."""
    cluster = group_in_sync()
    master = master_of(cluster)
    slave = next(node for node in cluster.brokers if node is not master)
    stop(cluster, slave.name)
    got: list[object] = []
    master.append(request(b"of the master alone"), got.append)
    cluster.run(0.1)
    assert master.log.durable_index == master.log.end_index
    master.hang_disk(3_000_000)
    assert cluster.run_until(lambda: len(log_at(cluster, master.name).set_nodes) == 1, 2)
    change_index = master.state.metadata.applied_index
    cluster.run(0.2)
    assert master.controller.log.durable_index < change_index
    assert got == []
    assert cluster.run_until(lambda: master.controller.log.durable_index >= change_index, 4)
    assert cluster.run_until(lambda: bool(got), 0.2)


@pytest.mark.rule("A-04", "C-09")
def test_an_unclean_election_that_no_copy_of_the_metadata_has_leaves_no_copy_behind() -> None:
    """The former master holds the lost records as confirmed: only that election allows their removal."""
    plan = HaPlan(brokers=2, unclean=True, faults=False, clients=0, links=LinkFaults(), own_controllers=True)
    cluster = HaCluster(1, plan)
    cluster.run(2)
    old = master_of(cluster)
    new = next(node for node in cluster.brokers if node is not old)
    stop(cluster, new.name)
    assert cluster.run_until(lambda: truth(cluster).set_nodes == (old.name,), 8)
    append_at(cluster, old, b"lost")
    stop(cluster, old.name)
    older = new.files.copy_folder(FOLDER)
    new.start()
    assert cluster.run_until(lambda: new.is_master and new.acknowledges, 8)
    append_at(cluster, new, b"acknowledged")
    stop(cluster, *CONTROLLERS, wipe=True)
    stop(cluster, new.name)
    new.files.put_folder(FOLDER, older)
    found = rebuilt(cluster)
    assert found.doubts == {"default": (new.name, 2)}
    cluster.checker.rebuilt(metadata_of(old))
    for node in cluster.nodes.values():
        node.start()
    assert cluster.run_until(lambda: new.is_master and new.acknowledges, 10)
    assert cluster.run_until(lambda: len(truth(cluster).set_nodes) == 2, 10)
    assert len(old.receipts()) == 1


@pytest.mark.rule("C-04", "C-09")
def test_a_second_rebuild_from_a_copy_from_before_the_first_one_gives_no_epoch_twice() -> None:
    cluster = group_in_sync()
    stop(cluster, *CONTROLLERS, wipe=True)
    stop(cluster, "n1", "n2")
    given = log_at(cluster, "n1").master_epoch + 1_000_020
    for name in ("n1", "n2"):
        HardStateFile(cluster.nodes[name].files, "data/logs/default/vote").save(HardState(given, "n2"))
    found = rebuilt(cluster)
    assert found.doubts["default"][1] == given
    assert found.logs[0].master_epoch >= given + 1_000_000
    for node in cluster.nodes.values():
        node.start()
    assert cluster.run_until(lambda: any(each.acknowledges for each in cluster.brokers), 10)


@pytest.mark.rule("C-09")
def test_a_majority_that_has_its_copy_is_not_rebuilt() -> None:
    cluster = group_in_sync()
    stop(cluster, "c1", wipe=True)
    stop(cluster, "c2", "c3", "n1", "n2")
    with pytest.raises(ConfigError, match="a majority"):
        rebuilt(cluster)


@pytest.mark.rule("C-09", "R-06")
def test_an_end_that_was_never_committed_is_not_another_history() -> None:
    cluster = group_in_sync()
    stop(cluster, *CONTROLLERS, wipe=True)
    stop(cluster, "n1", "n2")
    add_event(cluster.nodes["n1"], terms=2)
    add_event(cluster.nodes["n2"], terms=1)
    found = rebuilt(cluster)
    assert (found.source, found.copied) == ("n1", list(CONTROLLERS))
    for node in cluster.nodes.values():
        node.start()
    assert cluster.run_until(lambda: both_act(cluster), 10)


def forget_beginning(node: HaSimNode) -> None:
    """Leave to the copy of a node that is down its last two records, without the state before them: it was
    to get that from its leader."""
    folder = FOLDER
    committed_index = CheckpointFile(node.files, f"{folder}/checkpoint").load().committed_index
    log = Commitlog.open(
        node.files, folder, log_id=CONTROLLER_LOG_ID, config=STORAGE, committed_index=committed_index
    )
    ticket = log.start_trim(log.end_index - 1)
    assert ticket is not None
    ticket.run()
    log.close()
    if node.files.exists(f"{folder}/state"):
        node.files.remove(f"{folder}/state")


@pytest.mark.rule("C-09")
@pytest.mark.parametrize("source", [None, "n1"])
def test_the_newest_copy_may_lack_the_state_that_another_one_has(source: str | None) -> None:
    """Seed 26000051: the controllers began again without any log."""
    cluster = group_in_sync()
    stop(cluster, *CONTROLLERS, wipe=True)
    stop(cluster, "n1", "n2")
    add_event(cluster.nodes["n1"], terms=1, committed=True)
    forget_beginning(cluster.nodes["n1"])
    found = rebuilt(cluster, source=source)
    assert (found.source, [log.name for log in found.logs]) == ("n2", ["default"])
    assert found.copied == list(CONTROLLERS)
    for node in cluster.nodes.values():
        node.start()
    its_state = cluster.nodes["n1"].state
    assert cluster.run_until(lambda: its_state.metadata.log("default") is not None, 10)
    assert cluster.run_until(lambda: both_act(cluster), 10)


@pytest.mark.rule("C-09")
def test_metadata_without_a_beginning_rebuild_no_controller() -> None:
    cluster = group_in_sync()
    stop(cluster, *CONTROLLERS, wipe=True)
    stop(cluster, "n1", "n2")
    for name in ("n1", "n2"):
        add_event(cluster.nodes[name], terms=1, committed=True)
        forget_beginning(cluster.nodes[name])
    with pytest.raises(ConfigError, match="lacks the metadata before index"):
        rebuilt(cluster)


@pytest.mark.rule("C-09")
def test_a_named_copy_replaces_every_other_history() -> None:
    cluster = group_in_sync()
    stop(cluster, *CONTROLLERS, wipe=True)
    stop(cluster, "n1", "n2")
    for name, terms in (("n1", 2), ("n2", 1)):
        add_event(cluster.nodes[name], terms=terms, committed=True)
    with pytest.raises(ConfigError, match="different histories"):
        rebuilt(cluster)
    found = rebuilt(cluster, source="n2")
    assert (found.source, found.copied) == ("n2", ["n1", *CONTROLLERS])
    for node in cluster.nodes.values():
        node.start()
    assert cluster.run_until(lambda: both_act(cluster), 10)
