"""Rebuilds the log `__controller` from other nodes' copies after the controllers have lost their disks
(C-09).

Every node keeps a replica of that log, so what a majority of the controllers has lost is, except for the end,
still on the disks of the others. No node may run meanwhile. The newest copy is used: it holds everything that
any of them knows to be committed. It may lack the state before its first record, which it was to get from its
leader; then the newest copy with the state gets its records. One event is appended in a term of its own: the
master epochs continue far beyond those that the lost controllers may have assigned (C-04). Then each
controller without that history gets the log. Ends that were never committed may differ, and do not make
another history.

Events that no copy holds are lost: the last committed elections and changes of SyncStateSets and logs. A node
that knows a newer master epoch than the metadata proves that there were some: the next master of such a log
is elected among all of its replicas, not in the SyncStateSet of the copy. The same holds for a log whose vote
file is damaged or missing at a node, and for one of which a replica's folder is not here: those epochs cannot
be known. A change of the set within one epoch is in the copies of the metadata alone. The master acts by its
own node's copy: so it is known if every replica's node has its copy, all of it, and none of them has a newer
set. A learner counts as a replica: it may have been promoted since. A node that keeps a copy of such a log,
and that the metadata do not name, may have been added since: it becomes a replica, because it would remove
its copy otherwise, which may be the last one with acknowledged records.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from app.controller.events import SKIPPED_EPOCHS, AnyEvent, LogCreated, MetadataRebuilt, encode_event
from app.controller.log_state import MetadataLogState
from app.controller.metadata import CONTROLLER_LOG, Log, LogSpec
from app.controller.state_machine import Metadata
from app.errors import ConfigError
from app.log.state import DAY_MS
from app.node.metadata.folders import LogFolders
from app.node.repair.marker import RepairMarker
from app.node.state.checkpoints import load_state
from storage.errors import CorruptFile
from storage.file_system import FileSystem, write_durably
from storage.format.batch import Batch, log_id_of, stamp
from storage.format.records import RecordColumns, encode_body
from storage.log.checkpoint import CheckpointFile, SnapshotFile
from storage.log.clean_stop import OPENED_NAME
from storage.log.commitlog import Commitlog, CommitlogConfig
from storage.log.hard_state import HardState, HardStateFile
from storage.log.log_folder import MANIFEST_NAME
from storage.log.manifest import ManifestFile
from storage.log.origin import ORIGIN_NAME, FolderOrigin
from storage.units import MIB

_STEP_BYTES: Final = MIB  # of records copied at once


@dataclass(frozen=True, slots=True)
class NodeFolder:
    """The data folder of a stopped node."""

    node: str
    files: FileSystem
    data: str

    @property
    def folder(self) -> str:
        return f"{self.data}/logs/{CONTROLLER_LOG}"

    @property
    def has_copy(self) -> bool:
        return self.files.exists(f"{self.folder}/vote")

    @property
    def knows_sets(self) -> bool:
        """True if its copy, if it is whole, has every SyncStateSet by which a master on this node can have
        acted."""
        return self.has_copy and not self.marker.exists

    @property
    def marker(self) -> RepairMarker:
        return RepairMarker(self.files, self.data, CONTROLLER_LOG)


@dataclass(slots=True)
class Rebuilt:
    """Result of a rebuild, and its doubts.

    source: the node whose copy was used. events: number of its records, its end index + 1. copied: the
    nodes that got the log. logs: as in the metadata now. doubts: log -> the newest master epoch that a
    node knows and the metadata do not: its last master and set are unknown. newer_sets: log -> a node whose
    copy has a newer SyncStateSet. unknown: log -> the nodes whose newest epoch or set is unknown: their vote
    file is damaged or missing, their copy of the metadata is missing, in repair or without the state that it
    was to get from its leader, or their folder is not here. unnamed: log -> the nodes that became replicas of
    it, because they keep a copy. unopened: log -> the nodes that keep it, although its creation is lost.
    """

    source: str
    events: int
    copied: list[str] = field(default_factory=list)
    logs: tuple[Log, ...] = ()
    doubts: dict[str, tuple[str, int]] = field(default_factory=dict)
    newer_sets: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unnamed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unopened: dict[str, tuple[str, ...]] = field(default_factory=dict)


class _Copy:
    """One node's copy, open."""

    def __init__(self, node: NodeFolder, log_id: int, storage: CommitlogConfig) -> None:
        files, folder = node.files, node.folder
        self.node = node
        self.term = HardStateFile(files, f"{folder}/vote").load().term
        self.committed_index = CheckpointFile(files, f"{folder}/checkpoint").load().committed_index
        self.log = Commitlog.open(
            files, folder, log_id=log_id, config=storage, committed_index=self.committed_index
        )
        snapshot = SnapshotFile(files, f"{folder}/state")
        state, _ = load_state(self.log, snapshot, idempotency_ms=DAY_MS, state_type=MetadataLogState)
        assert isinstance(state, MetadataLogState)
        state.committed(self.log.end_index)  # a leader with this log would commit all of it
        self.state = state

    @property
    def rank(self) -> tuple[int, int]:
        return self.log.last_term, self.log.end_index

    @property
    def known_index(self) -> int:
        """Index of the metadata by which its node may have acted."""
        return max(self.log.end_index, self.log.first_index - 1)

    @property
    def is_whole(self) -> bool:
        """True if the state has every record up to the log's end, those before its first one included."""
        return self.state.applied_index == self.known_index

    def may_extend(self, other: "_Copy") -> bool:
        """Return whether this log continues the other one."""
        end = other.log.end_index
        return self.log.begin_index <= end <= self.log.end_index and self._is_same(other, end)

    def extend(self, other: "_Copy") -> None:
        """Add the records after the other log's end to it."""
        while other.log.next_index <= self.log.end_index:
            other.append(self.log.read_batches(other.log.next_index, _STEP_BYTES))

    def append(self, batches: Sequence[Batch]) -> None:
        """Add batches, durable on return."""
        self.log.append(batches)
        ticket = self.log.start_sync()
        if ticket is not None:
            ticket.run()
            self.log.finish_sync(ticket)
        for batch in batches:
            self.state.apply(batch)
        self.state.committed(self.log.end_index)

    def agrees_with(self, other: "_Copy") -> bool:
        """Return whether the other log holds what is committed here, as far as both still hold it.

        The end of a log may differ: what a leader had added without a majority is replaced later (R-06).
        """
        begin = max(self.log.begin_index, other.log.begin_index, 0)
        end = min(self.log.end_index, other.log.end_index)
        if end < begin:
            return end < 0
        return self._is_same(other, end) or (
            self.committed_index <= end and self._is_same(other, max(begin, self.committed_index))
        )

    def _is_same(self, other: "_Copy", index: int) -> bool:
        """Compare chain values: equal ones prove that all before the index is equal too."""
        return self.log.batch_at(index).header.chain == other.log.batch_at(index).header.chain


def rebuild(
    nodes: Sequence[NodeFolder],
    controllers: Sequence[str],
    *,
    cluster_id: str,
    storage: CommitlogConfig,
    configured: Mapping[str, LogSpec],
    now_ms: int,
    replace: bool = False,
    source: str | None = None,
) -> Rebuilt:
    """Give the controllers the newest copy of any node. Blocks; may be repeated after a crash.

    nodes: those whose folders are available here, including the controllers. configured: the logs of the
    configuration file. now_ms: wall clock. replace: also replace copies with another history: of controllers
    that were started with empty disks. source: the node whose copy is used, and replaces every other history;
    None for the newest copy. Raises ConfigError if nothing may be done, StorageError.
    """
    log_id = log_id_of(cluster_id, CONTROLLER_LOG)
    copies = {node.node: _Copy(node, log_id, storage) for node in nodes if node.has_copy}
    try:
        best = _best_of(copies, controllers, source, replace=replace)
        targets = [
            node for node in nodes if _needs_copy(copies.get(node.node), best, node.node in controllers)
        ]
        keeping = [name for name in controllers if name not in {node.node for node in targets}]
        kept = [name for name in keeping if name in copies and copies[name].log.end_index >= 0]
        if len(kept) > len(controllers) // 2:
            raise ConfigError(f"a majority of the controllers has its copy: {', '.join(kept)}; start them")
        found = Rebuilt(best.node.node, best.log.next_index, [node.node for node in targets])
        found.unopened = _protected(nodes, best)  # by the end of the copy, before events are added to it
        term = max(copy.term for copy in copies.values()) + 1
        if lost := _lost_configured(nodes, best, configured, cluster_id, now_ms):
            _add(best, term, log_id, lost)
        found.doubts, found.unknown = _doubts(nodes, copies, best)
        found.newer_sets = _newer_sets(copies, best)
        found.unnamed = _unnamed(nodes, best)
        event = MetadataRebuilt(
            log=CONTROLLER_LOG,
            time_ms=now_ms,
            skipped_epochs=SKIPPED_EPOCHS + _missed_epochs(best, found),
            doubtful=tuple(dict.fromkeys((*found.doubts, *found.newer_sets, *found.unknown, *found.unnamed))),
            unnamed=found.unnamed,
            keeps_former=True,
        )
        _add(best, term, log_id, [event])
        found.logs = tuple(best.state.metadata)
    finally:
        for copy in copies.values():
            copy.log.close()
    for node in targets:
        _give(best.node, node, term)
    for node in nodes:  # folders of other machines are copies, and these are what counts from now on
        FolderOrigin(node.files, node.folder).forget()
    return found


def _needs_copy(held: _Copy | None, best: _Copy, is_controller: bool) -> bool:
    """Return whether a node gets the log. Controllers that have started with empty disks, each alone, hold
    nothing that contradicts it: without it they would begin again."""
    if held is None or (is_controller and held.log.end_index < 0):
        return is_controller
    return not held.agrees_with(best)


def _best_of(
    copies: Mapping[str, _Copy], controllers: Sequence[str], source: str | None, *, replace: bool
) -> _Copy:
    held = {name: copy for name, copy in copies.items() if copy.log.end_index >= 0}
    if source is not None and source not in held:
        raise ConfigError(f"{source} has no copy of the controllers' log here")
    if not held:
        raise ConfigError("no folder here has a copy of the controllers' log: name others by --folder")
    others = {name: copy for name, copy in held.items() if name not in controllers}
    trusted = others if replace and others else held
    best = held[source] if source is not None else max(trusted.values(), key=lambda copy: copy.rank)
    strange = [name for name, copy in held.items() if not copy.agrees_with(best)]
    if strange and source is None and not (replace and all(name in controllers for name in strange)):
        raise ConfigError(
            f"{', '.join(strange)} and {best.node.node} hold different histories: controllers that were "
            "started with empty disks are replaced with --replace, otherwise name the copy by --source"
        )
    return best if best.is_whole else _completed(best, held.values())


def _completed(newest: _Copy, held: Iterable[_Copy]) -> _Copy:
    """Return the newest whole copy of the same history, with the records of `newest`. Raises ConfigError."""
    whole = [copy for copy in held if copy.is_whole and newest.may_extend(copy)]
    if not whole:
        raise ConfigError(
            f"the copy of {newest.node.node} lacks the metadata before index {newest.log.first_index}, and "
            "no folder here has them: name others by --folder"
        )
    best = max(whole, key=lambda copy: copy.rank)
    newest.extend(best)
    return best


def _doubts(
    nodes: Sequence[NodeFolder], copies: Mapping[str, _Copy], best: _Copy
) -> tuple[dict[str, tuple[str, int]], dict[str, tuple[str, ...]]]:
    """Return the logs of which a node knows a newer master epoch than the metadata, and those of which a node
    may know one."""
    doubts: dict[str, tuple[str, int]] = {}
    unknown: dict[str, tuple[str, ...]] = {}
    here = {node.node: node for node in nodes}
    whole = [name for name, copy in copies.items() if copy.is_whole or copy.known_index <= best.known_index]
    knowing = [name for name in whole if here[name].knows_sets]
    for log in best.state.metadata:
        if not log.elects:
            continue
        newest = log.master_epoch
        for name in dict.fromkeys((*here, *log.nodes)):
            epoch = _known_epoch(here[name], log.name) if name in here else None
            if epoch is None or (name in log.nodes and name not in knowing):
                unknown[log.name] = (*unknown.get(log.name, ()), name)
            elif epoch > newest:
                newest, doubts[log.name] = epoch, (name, epoch)
    return doubts, unknown


def _newer_sets(copies: Mapping[str, _Copy], best: _Copy) -> dict[str, str]:
    """Return the logs of which another copy has a newer SyncStateSet: another one was named by --source."""
    return {
        log.name: name
        for log in best.state.metadata
        for name, copy in copies.items()
        if (other := copy.state.metadata.log(log.name)) is not None
        and (other.generation, other.set_epoch > log.set_epoch) == (log.generation, True)
    }


def _unnamed(nodes: Sequence[NodeFolder], best: _Copy) -> dict[str, tuple[str, ...]]:
    """Return the logs of which nodes keep a copy that are not among its nodes, and these nodes.

    A copy whose node knows an older master epoch than the metadata was left by a node that was taken out.
    """
    found = {}
    for log in best.state.metadata:
        others = [node for node in nodes if log.elects and node.node not in log.nodes]
        keeping = [node.node for node in others if _keeps_copy(node, log)]
        if keeping:
            found[log.name] = tuple(keeping)
    return found


def _protected(nodes: Sequence[NodeFolder], best: _Copy) -> dict[str, tuple[str, ...]]:
    """Protect the logs that were created after the end of the metadata from later ones of their names; return
    them, and the nodes that keep them."""
    known = {log.name: log.generation for log in best.state.metadata}
    found: dict[str, tuple[str, ...]] = {}
    for node in nodes:
        for name in LogFolders(node.files, node.data).protect(known, best.log.end_index):
            found[name] = (*found.get(name, ()), node.node)
    return found


def _keeps_copy(node: NodeFolder, log: Log) -> bool:
    """Return whether the node may keep a copy of this very log from the present master epoch or later."""
    try:
        manifest = ManifestFile(node.files, f"{node.data}/logs/{log.name}/{MANIFEST_NAME}").load()
    except CorruptFile:
        return True
    if manifest is None or manifest.log_id != log.log_id:
        return False
    epoch = _known_epoch(node, log.name)
    return epoch is None or epoch >= log.master_epoch


def _known_epoch(node: NodeFolder, log: str) -> int | None:
    """Return the newest master epoch that the node has recorded, 0 without a copy; None if that is lost."""
    folder = f"{node.data}/logs/{log}"
    if not node.files.exists(f"{folder}/vote"):
        return None if node.files.exists(f"{folder}/{MANIFEST_NAME}") else 0
    try:
        return HardStateFile(node.files, f"{folder}/vote").load().term
    except CorruptFile:
        return None


def _missed_epochs(best: _Copy, found: Rebuilt) -> int:
    """Return the largest number of epochs of one log that a node knows, or may know, beyond those of the
    metadata.

    An earlier rebuild may have skipped a million, and the copy used now may be from before that. A node whose
    epoch is unknown may have recorded it.
    """
    known = {log.name: log.master_epoch for log in best.state.metadata}
    missed = max((epoch - known[name] for name, (_, epoch) in found.doubts.items()), default=0)
    return missed + (SKIPPED_EPOCHS if found.unknown else 0)


def _lost_configured(
    nodes: Sequence[NodeFolder],
    best: _Copy,
    configured: Mapping[str, LogSpec],
    cluster_id: str,
    now_ms: int,
) -> list[LogCreated]:
    """Return the creations that are lost of logs of the configuration file: a node keeps a copy. Without them
    the controllers would create these logs as new ones, of which any replica may be the first master."""
    lost = []
    for name, spec in configured.items():
        event = LogCreated(
            log=name, time_ms=now_ms, spec=spec, log_id=log_id_of(cluster_id, name), generation=-1
        )
        made = Metadata()
        made.apply(0, event)
        log = made.log(name)
        is_lost = best.state.metadata.log(name) is None and log is not None and log.elects
        if is_lost and log is not None and any(_keeps_copy(node, log) for node in nodes):
            lost.append(event)
    return lost


def _add(best: _Copy, term: int, log_id: int, events: Sequence[AnyEvent]) -> None:
    """Add events to the copy itself, so that its node agrees with the controllers from the start."""
    records = RecordColumns()
    for event in events:
        records.add(encode_event(event))
    log = best.log
    batch = stamp(
        encode_body(records),
        log_id=log_id,
        base_index=log.next_index,
        term=term,
        timestamp_ms=events[-1].time_ms,
        offset=log.end_offset,
        previous_chain=log.last_chain,
    )
    HardStateFile(best.node.files, f"{best.node.folder}/vote").save(HardState(term))
    best.append((batch,))


def _give(source: NodeFolder, target: NodeFolder, term: int) -> None:
    """Copy the log; the vote is written last, because a folder without one holds no copy."""
    files = target.files
    files.make_folders(target.folder)
    for name in files.sizes(target.folder):  # without folders: one holds what was set aside
        files.remove(f"{target.folder}/{name}")
    files.sync_folder(target.folder)
    target.marker.remove()
    for name in source.files.sizes(source.folder):
        if name not in ("vote", OPENED_NAME, ORIGIN_NAME):
            write_durably(files, f"{target.folder}/{name}", source.files.read(f"{source.folder}/{name}"))
    HardStateFile(files, f"{target.folder}/vote").save(HardState(term))
    files.sync_folder(target.folder)
