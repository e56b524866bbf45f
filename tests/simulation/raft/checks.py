"""Invariants of a simulated cluster, checked after every step; the cost is proportional to the change."""

from collections.abc import Mapping
from typing import Protocol

from app.errors import CommitlogError
from app.log.contract import NO_INDEX, Acks, AppendResult, Durability, Role
from app.node.replica.driver import LogDriver
from storage.format.batch import Batch
from storage.format.records import control_value
from storage.log.commitlog import Commitlog
from tests.simulation.raft.sometimes import Sometimes
from tests.simulation.world.promises import KnownRecords, Violation
from tests.support.committed import values_of


class Member(Protocol):
    """A node as the checker sees it; a dead one keeps what its disk surely holds."""

    @property
    def name(self) -> str: ...
    @property
    def alive(self) -> bool: ...
    @property
    def may_lack(self) -> bool:
        """Return True if its disk may have lost acknowledged data."""
        ...

    @property
    def driver(self) -> LogDriver: ...
    @property
    def log(self) -> Commitlog: ...
    @property
    def held_index(self) -> int: ...


class SafetyChecker(KnownRecords):
    """Remembers everything that was ever committed, and compares each step with it.

    Batches are compared by their headers, in which the chain value covers a batch and all before it: one
    comparison at the newest batch proves log matching (R-06) for the whole prefix.
    """

    def __init__(self, members: Mapping[str, Member], sometimes: Sometimes) -> None:
        super().__init__()
        self.fence: str | None = None  # the token that committed appends must carry now
        self.schemas: list[tuple[int, int]] = []  # index and version of the committed schemas
        self.elections = 0
        self.truncations = 0
        self._members = members
        self._sometimes = sometimes
        self._leaders: dict[int, str] = {}  # by term
        self._seen: dict[str, _Seen] = {}
        self._chains: dict[tuple[int, int], bytes] = {}  # (base index, term) -> chain

    def check(self, acted: Member) -> None:
        """Look at the member that has just done something. Raises Violation."""
        seen = self._seen[acted.name]
        log, driver = seen.log, seen.driver
        committed_index = driver.committed_index
        changed = committed_index != seen.committed_index or log.last_chain != seen.last_chain
        if committed_index != seen.committed_index:
            self._check_commit(acted, seen, committed_index)
        if log.last_chain != seen.last_chain:
            self._check_log(acted, seen)
        if changed:
            self._check_schemas(acted, seen)
        leads = driver.role is Role.LEADER
        if leads:
            self._check_leader(acted, seen)
        elif seen.leads and driver.term == seen.term:
            self._sometimes.hit("stood-down")
        seen.leads = leads

    def begin_life(self, member: Member) -> None:
        """The member has started: all that others count on is there."""
        self._seen[member.name] = _Seen(member)
        self._check_believed(member)
        self.check(member)

    def end_life(self, member: Member) -> None:
        """The member has crashed; its disk must still hold what others count on."""
        self._check_believed(member)

    # --- one log

    def _check_log(self, member: Member, seen: "_Seen") -> None:
        """The same index and term mean the same record and the same prefix, committed or not (R-06)."""
        log = seen.log
        end_index = log.end_index
        batch = log.batch_at(end_index) if end_index != NO_INDEX else None
        if end_index < seen.end_index:
            self.truncations += 1
        if log.durable_index < seen.durable_index or end_index < seen.end_index:
            self._check_believed(member)
        seen.end_index, seen.durable_index, seen.last_chain = end_index, log.durable_index, log.last_chain
        membership, before = seen.driver.state.membership, seen.membership
        if membership is not before:
            if before is not None and (membership is None or membership.since < before.since):
                self._sometimes.hit("membership-undone")
            seen.membership = membership
        if batch is None:
            return
        chain = self._chains.setdefault((batch.base_index, batch.term), batch.header.chain)
        if chain != batch.header.chain:
            raise Violation(f"{member.name}: {batch} is not what another log holds at that index and term")

    def _check_commit(self, member: Member, seen: "_Seen", now: int) -> None:
        """Committed records never change; the committed index of an incarnation never falls (D-20, R-05)."""
        before, log = seen.committed_index, seen.log
        if now < before:
            raise Violation(f"{member.name}: committed index fell from {before} to {now}")
        if now < log.begin_index or log.end_index == NO_INDEX:
            seen.committed_index = now  # of the checkpoint: the log has been trimmed or emptied since
            return
        if now > log.end_index:
            raise Violation(f"{member.name}: committed index {now} past its end {log.end_index}")
        if now > self.committed_index:
            self._check_majority(member, seen, now)
        self.reported_index = max(self.reported_index, now)
        index = min(self.committed_index + 1, log.batch_at(now).base_index)
        while index <= now:
            batch = log.batch_at(index)
            if batch.last_index > now:
                raise Violation(f"{member.name}: committed index {now} within {batch}")
            self._commit(member.name, batch)
            index = batch.next_index
        seen.committed_index = now

    def _check_schemas(self, member: Member, seen: "_Seen") -> None:
        """A replica shows the schemas that were committed up to its committed index.

        A replica that has not received the state of its log shows none.
        """
        state, committed_index = seen.driver.state, seen.committed_index
        if state.applied_index < committed_index:
            return
        shown = [(each.index, each.version) for each in state.schemas.until(committed_index)]
        if shown != [each for each in self.schemas if each[0] <= committed_index]:
            raise Violation(f"{member.name} shows the schemas {shown}, committed are {self.schemas}")

    def _check_majority(self, member: Member, seen: "_Seen", index: int) -> None:
        """Check that a new committed batch is durable on a majority of the current group (R-10, R-11).

        A voter whose disk has lost what it had acknowledged is excused: it reports that, and has no vote.
        """
        voters = seen.driver.group.voters
        held = [name for name in voters if self._holds(self._members[name], seen.log, index)]
        if 2 * len(held) <= len(voters):
            raise Violation(f"{member.name} committed {index}; of {voters} only {held} hold it")

    def _holds(self, peer: Member, log: Commitlog, index: int) -> bool:
        seen = self._seen.get(peer.name)
        if seen is None:
            return False
        if not seen.driver.sound or (peer.may_lack and not peer.alive):
            return True
        theirs = peer.log
        if theirs is log:
            return peer.held_index >= index
        if theirs.begin_index > index and seen.committed_index >= index:
            return True  # trimmed
        return (
            peer.held_index >= index
            and theirs.begin_index <= index
            and (not peer.alive or theirs.term_at(index) == log.term_at(index))
        )

    def answered(self, member: Member, answer: AppendResult | CommitlogError) -> None:
        """Check that an append which is acknowledged as synced is on the disks of a majority (R-11)."""
        if not isinstance(answer, AppendResult) or answer.replayed or answer.acks is Acks.LEADER:
            return
        if answer.durability is not Durability.FSYNC:
            return
        voters, index = member.driver.group.voters, answer.last_index
        synced = [name for name in voters if self._syncs(self._members[name], index)]
        if 2 * len(synced) <= len(voters):
            raise Violation(f"{member.name} acknowledged {index} as synced; of {voters} only {synced} are")

    def _syncs(self, peer: Member, index: int) -> bool:
        seen = self._seen.get(peer.name)
        if seen is None:
            return False
        if not seen.driver.sound or peer.may_lack:
            return True  # as in `_holds`
        return peer.log.durable_index >= index or peer.log.begin_index > index

    def _commit(self, name: str, batch: Batch) -> None:
        known = self.committed.get(batch.base_index)
        if known is None:
            if batch.base_index <= self.committed_index:
                raise Violation(f"{name}: {batch} was committed with other bounds before")
            self.committed[batch.base_index] = batch
            self.committed_index = batch.last_index
            if batch.is_control:
                self._note_control(batch)
            else:
                self._note_records(batch)
        elif known.header != batch.header:
            raise Violation(f"{name}: committed {batch}, but {known} was committed before")

    def _note_control(self, batch: Batch) -> None:
        value = control_value(batch)
        if value["kind"] == "fence":
            self.fence = value["token"]
        elif value["kind"] == "cursor":
            self.cursors[batch.last_index] = value["name"], value["index"]
        elif value["kind"] == "schema":
            self.schemas.append((batch.last_index, value["version"]))
            if value["version"] != len(self.schemas):
                raise Violation(f"schemas are committed in the order {self.schemas}")

    def _note_records(self, batch: Batch) -> None:
        """Every record exists once, with the token of the fence; sequences of producers have no gaps."""
        if batch.count > 1:
            self._sometimes.hit("large-batch")
        self._note_values(batch, values_of(batch))
        if self.fence is not None:
            raise Violation(f"{batch} is committed after a fence that it has no token for")
        self._note_sequences(batch)

    # --- leaders

    def _check_leader(self, member: Member, seen: "_Seen") -> None:
        """One leader a term (R-01), which holds all that is committed, and believes no peer too much."""
        term = seen.driver.term
        if term != seen.term or not seen.leads:
            seen.term, seen.watermarks = term, {}
            leader = self._leaders.get(term)
            if leader is None:
                self._leaders[term] = member.name
                self.elections += 1
                self._sometimes.leads(member.name, term)
                if term == max(self._leaders):  # late votes may elect the leader of an older term
                    self._check_completeness(member)
            elif leader != member.name:
                raise Violation(f"term {term} has two leaders: {leader} and {member.name}")
        watermarks = seen.driver.watermarks().get(term, {})
        if watermarks != seen.watermarks:
            for name, watermark in watermarks.items():
                if watermark != seen.watermarks.get(name):
                    self._check_watermark(member, self._members[name], watermark)
            seen.watermarks = watermarks

    def _check_believed(self, peer: Member) -> None:
        """The peer may hold less than before: no leader may believe that it still has what is gone."""
        for leader in self._members.values():
            if leader.alive and leader.name in self._seen and leader.driver.role is Role.LEADER:
                watermarks = leader.driver.watermarks().get(leader.driver.term, {})
                self._check_watermark(leader, peer, watermarks.get(peer.name, NO_INDEX))

    def _check_watermark(self, leader: Member, peer: Member, watermark: int) -> None:
        """A watermark never names what the peer does not hold, or holds otherwise (D-10, D-14)."""
        if watermark == NO_INDEX or peer.name not in self._seen or peer.driver.term > leader.driver.term:
            return
        if not peer.driver.sound or (peer.may_lack and not peer.alive):
            return  # its disk has lost what it had acknowledged: therefore it gives no vote
        if watermark < leader.log.begin_index:
            return  # committed and trimmed: the peer may have been emptied, to begin where its leader does
        if watermark > peer.held_index:
            raise Violation(f"{leader.name} counts {peer.name} at {watermark}, which holds {peer.held_index}")
        if not peer.alive:
            return  # cut off within a step, what it has in memory need not make sense
        ours, theirs = leader.log, peer.log
        if max(ours.begin_index, theirs.begin_index) <= watermark <= ours.end_index:
            terms = ours.term_at(watermark), theirs.term_at(watermark)
            if terms[0] != terms[1]:
                raise Violation(f"{leader.name} counts {peer.name} at {watermark}, of terms {terms}")

    def _check_completeness(self, member: Member) -> None:
        if self.committed_index == NO_INDEX:
            return
        if member.log.end_index >= self.committed_index:
            batch = member.log.batch_at(self.committed_index)
            if self.committed.get(batch.base_index) == batch:
                return
        raise Violation(
            f"{member.name} leads term {member.driver.term} without committed {self.committed_index}"
        )


class _Seen:
    """One incarnation of a member as it was when it acted last."""

    __slots__ = (
        "committed_index", "driver", "durable_index", "end_index", "last_chain", "leads", "log",
        "membership", "term", "watermarks",
    )  # fmt: skip

    def __init__(self, member: Member) -> None:
        self.driver = member.driver
        self.log = member.log
        self.committed_index = NO_INDEX
        self.end_index = self.durable_index = NO_INDEX
        self.last_chain = b""
        self.leads = False
        self.membership = member.driver.state.membership
        self.term = NO_INDEX
        self.watermarks: Mapping[str, int] = {}
