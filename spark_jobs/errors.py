"""What can stop a read of a log, each with what a person should do about it."""


class SourceError(RuntimeError):
    """Any refusal of the `commitlog` source; the message is written for whoever runs the query."""


class OptionError(SourceError):
    """An option that the source does not know, or a value that it cannot take."""


class Unreachable(SourceError):
    """No replica answered in time: the last complaint of each is in the message."""


class NoCopy(Unreachable):
    """A node that answers, and holds nothing of the log."""


class Refused(SourceError):
    """A replica answered with a problem that asking another, or again, will not mend."""

    def __init__(self, status: int, code: str, detail: str, fields: dict[str, object] | None = None) -> None:
        super().__init__(f"the log service refused: {status} {code}: {detail}")
        self.status = status
        self.code = code
        self.fields = fields or {}


class Trimmed(SourceError):
    """The log no longer holds the index that was asked for."""

    def __init__(self, log: str, index: int, begin_index: int) -> None:
        super().__init__(
            f"log {log!r} begins at index {begin_index}: the records from {index} to {begin_index - 1} were "
            "trimmed before they were read. They are lost to this query. To go on without them, set "
            "failOnDataLoss to false; a materializer that holds a fencing cursor keeps retention from "
            "passing it."
        )
        self.begin_index = begin_index


class EventsTrimmed(SourceError):
    """A node's journal no longer holds the event that was asked for."""

    def __init__(self, log: str, node: str, seq: int, first_seq: int) -> None:
        super().__init__(
            f"log {log!r}: the journal of node {node} begins at event {first_seq}: the events from {seq} to "
            f"{first_seq - 1} were removed by its retention ([journal] retention_ms, retention_bytes) before "
            "they were read. They are lost to this query. To go on without them, set failOnDataLoss to false."
        )
        self.first_seq = first_seq


class TableUnreadable(SourceError):
    """A Delta table that tail=union cannot read."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"tail=union cannot read the table at {path}: {reason}")


class LogClash(SourceError):
    """The log is not the one that this query has read so far."""

    def __init__(self, log: str, reason: str) -> None:
        super().__init__(
            f"log {log!r} is not the log that this query has read: {reason}. What was read before may not "
            "be in it. "
            "Either the endpoint names another cluster: correct it; or the cluster was wiped, restored or "
            "elected an "
            "unclean leader: compare the tables with the log, then start with an empty checkpoint and an "
            "empty table."
        )


class SinkError(SourceError):
    """Rows that could not be written, or not yet: the message says what is stored and what to do."""


class SinkClash(SinkError):
    """The log, or the staging folder, holds appends under this batch's name that are not this batch's."""

    def __init__(self, log: str, producer_id: str, batch_id: int) -> None:
        super().__init__(
            f"log {log!r} already holds appends of producer {producer_id!r} for batch {batch_id} or a later "
            "one, which this query has not made: the staging folder was removed, the checkpoint was lost, or "
            "another query uses this producerId. What was written before may be written twice if this goes "
            "on. Compare the log with the query's source; then go on under another producerId, or with a "
            "higher producerEpoch."
        )


class ShortRead(SourceError):
    """An answer left out, doubled or reordered records: a fault of the service, never to be passed on."""
