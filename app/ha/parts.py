"""Parts of a core of HA that its roles share. PURE."""

from dataclasses import dataclass

from app.ha.config import HaConfig
from app.ha.log import HaLog
from app.raft.state import MemberState, Outbox


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreParts:
    """The replica's state, its log and what the driver carries out next; the core owns them."""

    member: MemberState
    log: HaLog
    log_id: int
    outbox: Outbox
    config: HaConfig
