"""The audit log `__audit`: who administered what, with which outcome. Every node that keeps logs has it.

Entries wait in memory until they are committed: the operation that they describe does not wait for them. Each
one is also a line of the node's log, so that none is lost without a trace when a majority is down.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import Any, Final

import msgspec

from app.controller.commands import CreateLog
from app.controller.metadata import AUDIT_LOG, LogSpec
from app.errors import CommitlogError
from app.futures import settle
from app.log.claims import DIGEST_BYTES
from app.log.contract import AppendRequest, AppendResult
from app.log.producers import Producer
from app.node.hosted_log import HostedLog
from app.node.metadata.service import MetadataService
from app.node.network.audit_messages import (
    ENTRIES_MAX,
    ENTRY_MAX_BYTES,
    AuditAnswer,
    AuditMessage,
    AuditRequest,
)
from app.node.network.peer_calls import PeerCalls
from app.node.services import NodeServices
from app.settings.model import Replication, SecuritySettings
from storage.format.records import RecordColumns

logger = logging.getLogger(__name__)

WAITING_MAX: Final = 10_000  # entries in memory
_RETRY_S: Final = 0.5
_ASK_TIMEOUT_S: Final = 5.0
_ENCODE: Final = msgspec.json.Encoder().encode


@dataclass(slots=True)
class AuditCounts:
    """Entries since the start of the node. dropped: never stored, because WAITING_MAX entries waited."""

    written: int = 0
    dropped: int = 0


class AuditLog:
    """Entries of this node on their way into the log. Owned by the event loop; `run` runs beside it.

    Invariant: entries are stored in their order, each once.
    """

    def __init__(
        self,
        services: NodeServices,
        metadata: MetadataService,
        find: Callable[[str], HostedLog | None],
        replicas: tuple[str, ...],
        security: SecuritySettings,
    ) -> None:
        """find: a log that this node knows. replicas: the nodes that keep the log."""
        self.counts = AuditCounts()
        self.enabled = security.audit if security.audit is not None else security.tokens_file is not None
        self._services = services
        self._metadata = metadata
        self._find = find
        self._spec = LogSpec(
            replication=Replication.RAFT,
            replicas=replicas,
            retention={"ms": security.audit_retention_ms, "bytes": None},
        )
        self._calls = PeerCalls(services.transport, services.random)
        self._producer = f"{services.node_id}-{secrets.token_hex(8)}"
        self._sequence = 0
        self._waiting: deque[bytes] = deque()
        self._attempt: tuple[bytes, ...] = ()  # the first of them, unchanged in every repeat
        self._changed = asyncio.Event()

    @property
    def waiting(self) -> int:
        """Number of entries that are not stored yet."""
        return len(self._waiting)

    def write(self, entry: dict[str, Any]) -> None:
        """Log an entry, and queue it for the audit log. Never waits, never raises."""
        if not self.enabled:
            return
        entry = {"timestamp": self._services.clock.now_ms(), "node": self._services.node_id, **entry}
        logger.info("administration", extra=entry)
        data = _ENCODE(entry)
        if len(data) > ENTRY_MAX_BYTES:
            data = _ENCODE({**entry, "request": None})
        if len(self._waiting) >= WAITING_MAX or len(data) > ENTRY_MAX_BYTES:
            self.counts.dropped += 1
            return
        self._waiting.append(data)
        self._changed.set()

    async def run(self) -> None:
        """Store entries as they arrive, until cancelled; repeat what fails."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._waiting:
                self._attempt = self._attempt or tuple(islice(self._waiting, ENTRIES_MAX))
                if not await self._stored(self._attempt):
                    await asyncio.sleep(_RETRY_S)
                    continue
                entries, self._attempt = self._attempt, ()
                self._sequence += 1
                self.counts.written += len(entries)
                for _ in entries:
                    self._waiting.popleft()

    async def flush(self, timeout_s: float) -> None:
        """Wait until all entries are stored, or for the time limit."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._waiting:  # noqa: ASYNC110  # at a stop only
                    await asyncio.sleep(0.01)
        except TimeoutError:
            logger.error("entries are not in the log", extra={"entries": len(self._waiting)})

    def take(self, source: str, log_id: int, message: AuditMessage) -> None:
        """Handle the entries of a peer, or its answer to this node's."""
        if isinstance(message, AuditAnswer):
            self._calls.answered(source, log_id, message)
            return

        def answer(stored: bool) -> None:
            self._services.transport.send(source, log_id, AuditAnswer(message.id, stored))

        self._append(message, answer)

    # --- within -------------------------------------------------------------------------------------------

    async def _stored(self, entries: tuple[bytes, ...]) -> bool:
        """Make one attempt to store the entries; return whether they are committed."""
        try:
            hosted = await self._log()
        except CommitlogError as error:
            logger.warning("the audit log is not available: %s", error)
            return False
        if hosted is None:
            return False

        def request(call_id: int) -> AuditRequest:
            return AuditRequest(call_id, self._producer, self._sequence, entries)

        if hosted.leads:
            future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self._append(request(0), partial(settle, future))
            return await future
        here = self._services.node_id
        leader = hosted.leader_id
        for node in hosted.answering(here) if hosted.serving is None else (leader,):
            if node is not None and node != here:
                answer = await self._calls.ask(node, hosted.log_id, request, _ASK_TIMEOUT_S)
                if isinstance(answer, AuditAnswer) and answer.stored:
                    return True
        return False

    def _append(self, request: AuditRequest, done: Callable[[bool], None]) -> None:
        """Append entries at the leader; done(committed)."""
        hosted = self._find(AUDIT_LOG)
        if hosted is None or hosted.driver is None or not hosted.leads:
            done(False)
            return
        records = RecordColumns()
        for entry in request.entries:
            records.add(entry)

        def ended(result: AppendResult | CommitlogError) -> None:
            if isinstance(result, CommitlogError):
                logger.warning("entries not stored: %s", result)
            done(isinstance(result, AppendResult))

        hosted.driver.append(
            AppendRequest(
                records,
                producer=Producer(request.producer, 0, request.sequence, allow_gap=True),
                digest=blake2b(b"".join(request.entries), digest_size=DIGEST_BYTES).digest(),
            ),
            ended,
        )

    async def _log(self) -> HostedLog | None:
        """Return the log, created if it does not exist; None while that is not known.

        Raises CommitlogError.
        """
        hosted = self._find(AUDIT_LOG)
        if hosted is not None or not self._metadata.is_current:
            return hosted
        await self._metadata.ask(CreateLog(AUDIT_LOG, self._spec, secrets.token_hex(16)))
        return self._find(AUDIT_LOG)
