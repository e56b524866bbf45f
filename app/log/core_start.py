"""State from which the core of a replica starts. PURE."""

from dataclasses import dataclass
from random import Random

from app.log.contract import Durability, GroupConfig
from storage.log.hard_state import HardState


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreStart:
    """Values that every replication mode needs beside the log itself.

    group: the configured group. hard_state: as on disk. committed_index: of the checkpoint, or NO_INDEX.
    random: draws timeouts, and ids that no other incarnation uses.
    """

    node_id: str
    log_id: int
    group: GroupConfig
    durability: Durability
    hard_state: HardState
    committed_index: int
    random: Random
