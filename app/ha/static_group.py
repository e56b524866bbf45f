"""Parts of ReplicationCore for Raft that HA cores do not have: their groups are metadata, or settings.
PURE."""

from collections.abc import Mapping

from app.errors import AlreadyLeader, CommitlogError, InvalidRequest, TransferFailed
from app.ha.log import HaLog
from app.log.contract import ChangeKind, Durability, GroupConfig, LogOptions, Role
from app.raft.member_core import MemberCore


class StaticGroup(MemberCore):
    """The part of ReplicationCore that is the same for all cores of HA."""

    pauses_appends = False
    notice = None
    waiting_reads = 0
    knows_vote = True
    decider = "the configuration"  # about roles and replicas
    _log: HaLog

    @property
    def is_transferring(self) -> bool:
        return False

    @property
    def refusal(self) -> CommitlogError | None:
        return None

    def transfer(self, to: str | None, now_ms: int) -> str:
        if to == self._member.node_id and self._member.role is Role.MASTER:
            raise AlreadyLeader(to)
        raise TransferFailed(f"the leader of this log is set by {self.decider}")

    def hand_over(self, now_ms: int) -> None:
        """Keep the role: the node ends at once."""

    def change(self, kind: ChangeKind, node_id: str, now_ms: int) -> GroupConfig | None:
        raise InvalidRequest(("/", f"the replicas of this log are set by {self.decider}"))

    def apply_options(self, options: LogOptions, now_ms: int) -> None:
        member = self._member
        if options.durability is not member.durability is Durability.REPLICATED:
            member.unsynced_index = self._log.end_index
        member.durability = options.durability

    def configure(
        self,
        group: GroupConfig,
        index: int,
        now_ms: int,
        nodes: Mapping[str, tuple[str, str]] | None = None,
        *,
        settled: bool = False,
    ) -> None:
        """Ignore a group of a record: the configuration alone names the replicas of such a log."""
