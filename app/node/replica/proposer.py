"""Batches of a leader: stamped for the end of the log, and passed to the core."""

from collections.abc import Sequence

from app.log.contract import NO_INDEX, ReplicationCore
from app.log.control_records import AnyControlRecord
from app.log.driver_interfaces import Clock
from app.node.replica.open_appends import OpenAppend, OpenCommand, Stamped
from app.node.services import ReplicaFiles
from storage.format.batch import AppendMark, EncodedBody, stamp
from storage.format.records import encode_control


class Proposer:
    """Owned by one driver. Invariant: timestamps never fall within a log."""

    def __init__(self, files: ReplicaFiles, core: ReplicationCore, clock: Clock) -> None:
        self._files = files
        self._core = core
        self._clock = clock
        self._stamped_ms = 0  # of the last batch, ms since 1970

    def open_term(self, record: AnyControlRecord) -> None:
        """Write the control record that the core wants. Later timestamps are never below the log's last
        one."""
        log = self._files.log
        if log.end_index != NO_INDEX:
            self._stamped_ms = log.batch_at(log.end_index).timestamp_ms
        self.propose(encode_control(record), [], control=True)

    def propose(
        self,
        body: EncodedBody,
        waiting: Sequence[OpenAppend | OpenCommand],
        *,
        marks: Sequence[AppendMark] = (),
        control: bool = False,
    ) -> None:
        """Stamp a batch for the log's end and pass it to the core. waiting: the appends that its records
        answer."""
        log, term = self._files.log, self._core.term
        self._stamped_ms = max(self._stamped_ms, self._clock.now_ms())
        batch = stamp(
            body,
            log_id=self._files.log_id,
            base_index=log.next_index,
            term=term,
            timestamp_ms=self._stamped_ms,
            offset=log.end_offset,
            previous_chain=log.last_chain,
            control=control,
            marks=marks,
        )
        stamped, first_index, pendings = Stamped(batch), batch.base_index, []
        for each in waiting:
            next_index = first_index + each.count
            each.stamped = stamped
            pendings.append(each.pending(first_index, next_index - 1))
            first_index = next_index
        self._core.propose(batch, pendings, self._clock.monotonic_ms())
