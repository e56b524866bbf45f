"""Headers about a log in every answer, and the refusal of a node that does not lead it (docs/api.md §4).

Independent of any framework: the append handler uses it too.
"""

from typing import Final

from app.errors import CommitlogError, NotLeader, Repairing
from app.node.broker import Broker
from app.node.hosted_log import HostedLog
from app.settings.model import Replication

COMMITTED_INDEX: Final = b"commitlog-committed-index"


def log_headers(
    broker: Broker, hosted: HostedLog, shown: tuple[int, int] | None = None
) -> list[tuple[bytes, bytes]]:
    """Return term, committed index and leader of a log that this node serves; nothing for another.

    shown: the term and the committed index that the answer reports; None: those of now.
    """
    driver = hosted.serving
    if driver is None:
        return []
    term, committed_index = shown or (driver.term, driver.committed_index)
    headers = [(b"commitlog-term", b"%d" % term), (COMMITTED_INDEX, b"%d" % committed_index)]
    leader = broker.nodes.find(driver.leader_id)
    if leader is not None:
        headers.insert(0, (b"commitlog-leader", leader.url.encode("latin-1")))
    return headers


def not_leader(broker: Broker, hosted: HostedLog) -> CommitlogError:
    """Return the refusal of a node that does not lead, for a client that wants no other node's answer."""
    if hosted.repair is not None:
        return Repairing()
    has_copy = hosted.driver is not None
    leader = broker.nodes.find(hosted.leader_id if has_copy else _master_elsewhere(broker, hosted))
    if leader is not None:
        return NotLeader(leader.id, leader.url)
    return NotLeader(None) if hosted.serving is None else hosted.no_leader


def _master_elsewhere(broker: Broker, hosted: HostedLog) -> str | None:
    """Return the master of a log that this node keeps no copy of; None for a log of Raft, whose leader only
    its members know, and while this node's own copy is being opened."""
    settings = hosted.settings
    master = None
    if settings.replication is Replication.CLASSIC:
        master = settings.replicas[0]
    elif settings.replication is Replication.CONTROLLER and (log := broker.metadata.log(hosted.name)):
        master = log.master_node
    return None if master == broker.node.id else master
