"""A connection of a slave at its master: what was sent, and how much may be sent now. PURE."""

from dataclasses import dataclass

from app.ha.config import HaConfig
from app.ha.flow import Flow
from app.ha.sending import Piece, Sender


@dataclass(slots=True, kw_only=True)
class SlaveLink:
    """The part of a slave's connection that is the same in controller mode and in classic mode.

    sender: None until the slave has reported where its log ends. room_bytes: of the connection's window.
    """

    key: str
    heard_ms: int
    flow: Flow
    room_bytes: int
    sender: Sender | None = None
    sent_ms: int = 0

    def is_silent(self, now_ms: int, config: HaConfig) -> bool:
        """Return whether the slave has sent nothing for too long (H-05)."""
        is_shaking_hands = self.sender is None
        limit_ms = config.ha_handshake_timeout_ms if is_shaking_hands else config.ha_housekeeping_interval_ms
        return now_ms - self.heard_ms > limit_ms

    def is_idle(self, now_ms: int, config: HaConfig) -> bool:
        """Return whether nothing was sent for so long that a heartbeat is due."""
        return now_ms - self.sent_ms >= config.ha_send_heartbeat_interval_ms

    def take(self, config: HaConfig, until_index: int, now_ms: int, *, limited: bool = True) -> list[Piece]:
        """Return the next bytes to send, whole batches up to until_index, and count them. Raises Trimmed.

        limited: by the flow control as well, not by the connection's window alone.
        """
        if self.sender is None:
            return []
        room_bytes = self.room_bytes
        if limited:
            room_bytes = min(room_bytes, self.flow.room_bytes(now_ms))
        pieces = self.sender.pieces(room_bytes, config.ha_transfer_batch_size, until_index)
        for piece in pieces:
            self.room_bytes -= len(piece.body)
            self.flow.sent(len(piece.body), now_ms)
        return pieces
