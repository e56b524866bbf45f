"""Single steps on a group in controller mode for tests: appends, trims, replaced disks."""

from random import Random

from app.controller.metadata import Log
from app.errors import CommitlogError
from app.log.commands import Trim
from app.log.contract import AppendRequest, AppendResult
from storage.format.records import RecordColumns
from tests.simulation.controller.cluster import HaCluster
from tests.simulation.controller.node import HaSimNode
from tests.simulation.controller.plan import LOG_NAME
from tests.support.memory_files import MemoryFiles

ANSWER_S = 3.0  # simulated, for one request


def truth(cluster: HaCluster) -> Log:
    """The log's metadata as the controllers have committed them."""
    log = cluster.checker.truth.log(LOG_NAME)
    assert log is not None
    return log


def master_of(cluster: HaCluster) -> HaSimNode:
    """The living master of the newest epoch."""
    epoch = truth(cluster).master_epoch
    return next(
        node for node in cluster.brokers if node.alive and node.is_master and node.core.epoch == epoch
    )


def replica_id_of(node: HaSimNode) -> int:
    """The id of the copy that the node has now, 0 until it is registered."""
    return node.managers._replicas[LOG_NAME].manager.replica_id


def request(*values: bytes, key: str | None = None) -> AppendRequest:
    """One append; with a key its digest is that of the key."""
    records = RecordColumns()
    for value in values:
        records.add(value)
    digest = b"" if key is None else key.encode().ljust(16)[:16]
    return AppendRequest(records, timeout_ms=2_000, idempotency_key=key, digest=digest)


def try_append(
    cluster: HaCluster, node: HaSimNode, *values: bytes, key: str | None = None
) -> AppendResult | CommitlogError:
    """Append at a node and wait for the answer."""
    got: list[AppendResult | CommitlogError] = []
    node.append(request(*values, key=key), got.append)
    assert cluster.run_until(lambda: bool(got), ANSWER_S)
    return got[0]


def append_at(cluster: HaCluster, node: HaSimNode, *values: bytes, key: str | None = None) -> AppendResult:
    """As try_append, and it must be acknowledged."""
    result = try_append(cluster, node, *values, key=key)
    assert isinstance(result, AppendResult), result
    return result


def trim(cluster: HaCluster, node: HaSimNode, until_index: int) -> None:
    """Trim at the master, and wait until its log begins there."""
    node.driver.command(Trim(until_index), lambda _answer: None)
    begin_index = node.log.batch_at(until_index).base_index
    assert cluster.run_until(lambda: node.log.begin_index == begin_index, ANSWER_S)


def replace_disk(node: HaSimNode) -> None:
    """An empty disk for a node that is down."""
    node.files = MemoryFiles(Random(1))
