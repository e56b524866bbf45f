"""An operator's election of a named copy that lacks acknowledged records, while the master leads. PURE.

Without the last lease such an election can only be refused, and the log would be without a master until then.
So the lease is not withheld before the copy has reported all that the master had reported as confirmed when
the election was requested. A copy that does not report that in time is refused; the master has led all the
time.
"""

from app.controller.commands import ElectMaster, Reason, Refused
from app.controller.complete_copies import confirmed_end, counts_all, held_end
from app.controller.liveness import Liveness
from app.controller.metadata import Log


class CatchingUp:
    """Elections that wait for records, each on its own: several of one log may be requested at once."""

    def __init__(self) -> None:
        self._waiting: dict[ElectMaster, tuple[int, int]] = {}  # election -> end in bytes, until

    def must_wait(self, log: Log, command: ElectMaster, liveness: Liveness, now_ms: int) -> bool:
        """Return whether the election must wait for records. Raises Refused once it has waited long enough:
        for two heartbeats."""
        replica = None if command.candidate is None else log.of_node(command.candidate)
        if replica is None or command.unclean or counts_all(log):
            return False
        waiting = self._waiting.get(command)
        if waiting is None:
            self._forget_past(now_ms)
            config = liveness.config
            until_ms = now_ms + 2 * config.heartbeat_interval_ms + config.retry_interval_ms
            waiting = self._waiting[command] = confirmed_end(log, liveness), until_ms
        end, until_ms = waiting
        lacks_bytes = max(0, end - held_end(log, liveness, replica))
        if lacks_bytes and now_ms < until_ms:
            return True
        del self._waiting[command]
        if lacks_bytes:
            raise Refused(
                Reason.NO_ELIGIBLE_REPLICA,
                f"{command.candidate} lacks {lacks_bytes} bytes that may be acknowledged; with `unclean`"
                " (--unclean) it becomes master, and they are lost",
            )
        return False

    def _forget_past(self, now_ms: int) -> None:
        """Forget the elections that were decided for other reasons."""
        self._waiting = {each: known for each, known in self._waiting.items() if now_ms < known[1]}

    def forget(self, log: str) -> None:
        """The log is deleted."""
        self._waiting = {each: known for each, known in self._waiting.items() if each.log != log}
