"""Headers about a log in every answer, and the refusal of a node that does not lead it (docs/api.md §4).

Independent of any framework: the append handler uses it too.
"""

from typing import Final

from app.errors import CommitlogError, NoLeader, NotLeader, Repairing
from app.node.broker import Broker
from app.node.hosted_log import HostedLog

COMMITTED_INDEX: Final = b"commitlog-committed-index"


def log_headers(broker: Broker, hosted: HostedLog) -> list[tuple[bytes, bytes]]:
    """Return term, committed index and leader of a log that this node serves; nothing for another."""
    driver = hosted.serving
    if driver is None:
        return []
    headers = [
        (b"commitlog-term", b"%d" % driver.term),
        (COMMITTED_INDEX, b"%d" % driver.committed_index),
    ]
    leader = broker.nodes.find(driver.leader_id)
    if leader is not None:
        headers.insert(0, (b"commitlog-leader", leader.url.encode("latin-1")))
    return headers


def not_leader(broker: Broker, hosted: HostedLog) -> CommitlogError:
    """Return the refusal of a node that does not lead, for a client that wants no other node's answer."""
    if hosted.repair is not None:
        return Repairing()
    leader = broker.nodes.find(hosted.leader_id)
    if leader is not None:
        return NotLeader(leader.id, leader.url)
    return NotLeader(None) if hosted.serving is None else NoLeader()
