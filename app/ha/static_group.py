"""What Raft's cores are asked and those of HA do not have: their groups are metadata, or settings. PURE."""

from app.errors import CommitlogError, InvalidRequest, TransferFailed
from app.raft.member_core import MemberCore
from app.replication import ChangeKind, GroupConfig


class StaticGroup(MemberCore):
    """The part of ReplicationCore that is the same for all cores of HA."""

    electable = True
    is_transferring = False
    sound = True
    who_decides = "the configuration"  # about roles and replicas

    @property
    def refusal(self) -> CommitlogError | None:
        return None

    def transfer(self, to: str | None, now_ms: int) -> str:
        raise TransferFailed(f"who leads this log is decided by {self.who_decides}")

    def change(self, kind: ChangeKind, node_id: str, now_ms: int) -> GroupConfig | None:
        raise InvalidRequest(("/", f"who replicates this log is decided by {self.who_decides}"))

    def configure(self, group: GroupConfig, index: int, now_ms: int) -> None:
        """No record of such a log says who replicates it."""
