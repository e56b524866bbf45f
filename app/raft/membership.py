"""Members of a group as the log defines them (R-10): learner first, then voter, one change at a time.

Majorities of two groups that differ in one voter overlap, so no joint phase is needed (Raft thesis 4.1). That
replaced disks do not undo this is the part of the former voters (Standing.configure).
"""

from dataclasses import dataclass

from app.errors import ChangeInProgress, NotCaughtUp, NotFound, WouldLoseQuorum
from app.log.contract import ChangeKind, GroupConfig


@dataclass(frozen=True, slots=True)
class GroupView:
    """The leader's view of its group at one instant.

    settled: the last change and a record of this term are committed. level: peers that hold nearly all of the
    log. awake: members heard within an election timeout, including the leader. counted: those of them whose
    acknowledgements count.
    """

    group: GroupConfig
    settled: bool
    level: tuple[str, ...]
    awake: tuple[str, ...]
    counted: tuple[str, ...]


def changed(view: GroupView, kind: ChangeKind, node_id: str) -> GroupConfig | None:
    """Return the group after the change, None when nothing changes.

    One of two voters becomes a learner first, and a second removal takes it out. So it holds the record by
    which it votes no more (Standing.configure), and once it is out, a record after that one shows it.

    Raises ChangeInProgress, NotCaughtUp (promotion of a member that lags), WouldLoseQuorum (the reachable
    voters that count would not be a majority, or none would be left), NotFound.
    """
    group = view.group
    voters, learners = group.voters, group.learners
    if kind is ChangeKind.ADD and node_id in group.members:
        return None
    if kind is ChangeKind.PROMOTE and node_id in voters:
        return None
    if kind is not ChangeKind.ADD and node_id not in group.members:
        raise NotFound(f"{node_id} is not a member")
    if voters == (node_id,):
        raise WouldLoseQuorum(f"{node_id} is the only voter")
    if not view.settled:
        raise ChangeInProgress
    if kind is ChangeKind.ADD:
        return GroupConfig(voters=voters, learners=(*learners, node_id))
    rest = tuple(learner for learner in learners if learner != node_id)
    if kind is ChangeKind.PROMOTE:
        if node_id not in view.level:
            raise NotCaughtUp(node_id, answers=node_id in view.awake)
        after = GroupConfig(voters=(*voters, node_id), learners=rest)
    else:
        others = tuple(voter for voter in voters if voter != node_id)
        is_kept = len(voters) == 2 and node_id in voters
        after = GroupConfig(voters=others, learners=(*rest, node_id) if is_kept else rest)
    counted = sum(voter in view.counted for voter in after.voters)
    if after.voters != voters and counted < len(after.voters) // 2 + 1:
        raise WouldLoseQuorum(f"{counted} of {len(after.voters)} voters would be in reach, and not in doubt")
    return after


def next_change(group: GroupConfig, wanted: GroupConfig, leader_id: str) -> tuple[ChangeKind, str] | None:
    """Return the next change on the way from one group to another, None when they have the same members.

    Members are added and promoted before others are removed, the leader last. A voter that becomes a learner
    is removed and added again.
    """
    for node_id in wanted.members:
        if node_id not in group.members:
            return ChangeKind.ADD, node_id
    for node_id in wanted.voters:
        if node_id in group.learners:
            return ChangeKind.PROMOTE, node_id
    gone = [node_id for node_id in group.voters if node_id not in wanted.voters]
    gone += [node_id for node_id in group.learners if node_id not in wanted.learners]
    if not gone:
        return None
    return ChangeKind.REMOVE, min(gone, key=lambda node_id: node_id == leader_id)
