"""Next seqs of the journals of all logs, as the nodes report them, without Spark."""

from typing import Any

from spark_jobs.errors import Unreachable
from spark_jobs.materialize.journal_poller import JournalPoller
from spark_jobs.source.answers import LogEnds, Node


class Nodes:
    """Two nodes and their logs. down: urls that do not answer."""

    def __init__(self) -> None:
        self.logs = ["default"]
        self.down: set[str] = set()

    def nodes(self) -> list[Node]:
        return [Node(node, f"http://{node}", True) for node in ("n1", "n2")]

    def ends(self, url: str) -> dict[str, LogEnds]:
        if url in self.down:
            raise Unreachable(url)
        return {log: LogEnds(f"id of {log}", 0, 5, 1, 7) for log in self.logs}


def test_a_deleted_log_has_no_journals_and_a_silent_node_keeps_its_own() -> None:
    """Logs may come and go for as long as the job runs."""
    nodes = Nodes()
    client: Any = nodes
    poller = JournalPoller(client, 1.0)
    for number in range(20):
        nodes.logs = ["default", f"run-{number}"]
        poller.ask()
    assert poller.of("run-19") == {"n1": 7, "n2": 7}
    assert all(poller.of(f"run-{number}") == {} for number in range(19))
    nodes.down, nodes.logs = {"http://n2"}, ["default"]
    poller.ask()
    assert poller.of("run-19") == {"n2": 7}
    assert poller.of("default") == {"n1": 7, "n2": 7}
