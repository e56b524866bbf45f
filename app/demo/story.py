"""The demo from the first process to the last proof."""

import json
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.client import ClientError, CommitlogClient, NotFound
from app.client.operations import Operations
from app.demo.flights import FLIGHTS_SCHEMA, read_flights
from app.demo.node_logs import NodeLog, NodesDiffer, count_events, read_node_log, wait_for_same_end
from app.demo.proofs import (
    Proof,
    Sent,
    prove_entries,
    prove_epochs,
    prove_nodes,
    prove_typed,
    prove_watermarks,
)
from app.demo.sender import AppendThread, gap_ms
from app.demo.show import Show
from app.local.cluster import ClusterError, LocalCluster
from app.local.processes import ChildProcess
from app.local.spark_job import ENDING_LINES, SparkJob
from app.tables.names import CURSOR

POLL_EACH_S = 0.05
CURSOR_AT_ONCE = ("--cursor-each-s", "1")  # the demo ends with the move of the job's cursor
STALLED_S = 300.0  # time without an acknowledged record, or a new row, after which the demo gives up
SAME_END_TIMEOUT_S = 60.0
SPARK_TIMEOUT_S = 300.0


class DemoFailed(Exception):
    """The demo cannot continue. The message states the reason, and where to read more."""


@dataclass
class Story:
    """Progress and report of the demo."""

    flights: int
    leader: str = ""
    killed_pid: int = 0
    killed_at_record: int = 0
    gap_ms: int | None = None
    send_s: float = 0.0
    into_delta_s: float = 0.0
    nodes: list[NodeLog] = field(default_factory=list)
    found: dict[str, Any] = field(default_factory=dict)
    proofs: list[Proof] = field(default_factory=list)
    notebook_html: Path | None = None

    @property
    def holds(self) -> bool:
        return bool(self.proofs) and all(proof.holds for proof in self.proofs)


class Demo:
    """One run. Everything that it starts is registered on `stack`, and ends with it."""

    def __init__(self, folder: Path, port: int, flights: int, show: Show, stack: ExitStack) -> None:
        self.folder = folder
        self.show = show
        self.story = Story(flights)
        self.cluster = stack.enter_context(LocalCluster(folder, nodes=3, port=port))
        self._stack = stack
        self._job: SparkJob | None = None
        self._spark_side: ChildProcess | None = None
        self._answer = folder / "proofs.json"
        self._spark_progress = folder / "proofs.progress"
        self._notebook = folder / "notebook.html"

    # --- the cluster ---

    def start(self) -> None:
        """Start three nodes, then the Spark job, which warms up while the flights are sent."""
        try:
            self.cluster.start()
            self.cluster.wait_ready()
        except ClusterError as error:
            raise DemoFailed(f"the cluster does not start: {error}") from error
        with self._client() as client:
            leader = client.status()["leader"]
            client.put_schema(FLIGHTS_SCHEMA)
        pids = ", ".join(f"{node.id} (pid {self.cluster.pid(node.id)})" for node in self.cluster.nodes)
        self.show.line(f"{pids}; {leader} leads; logs in {self.folder}/nK/log")
        self._job = self._stack.enter_context(SparkJob(self.cluster, java_environment(), CURSOR_AT_ONCE))
        self.show.line(f"Spark job (pid {self._job.pid}); log {self._job.log}")

    # --- the flights, and the kill ---

    def send(self) -> Sent:
        """Send all flights; kill the leader half-way; restart it when the cluster has a new leader."""
        story = self.story
        sender = AppendThread(self.cluster.urls, read_flights(story.flights), story.flights)
        self._stack.callback(sender.stop)
        sender.start()
        killed_term = 0
        stalled = Stalled("no append was acknowledged")
        with self.show.bar("flights sent", story.flights) as bar:
            while sender.running:
                if not story.leader and sender.half_way.wait(POLL_EACH_S):
                    latest = sender.done.acknowledgements[-1]
                    story.leader, killed_term = latest.leader, latest.term
                    story.killed_pid = self.cluster.pid(story.leader)
                    self.cluster.kill_node(story.leader)
                    story.killed_at_record = sender.done.sent
                    self.show.line(
                        f"SIGKILL for {story.leader} (pid {story.killed_pid}), leader of term {killed_term}, "
                        f"after {story.killed_at_record:,} flights"
                    )
                if story.leader and story.gap_ms is None:
                    story.gap_ms = gap_ms(sender.done.acknowledgements, killed_term)
                    if story.gap_ms is not None:
                        self._restart_killed(story.gap_ms, sender.done.acknowledgements[-1].leader)
                self._check_children()
                stalled.check(sender.done.sent)
                bar.to(sender.done.sent)
                if story.leader:
                    time.sleep(POLL_EACH_S)
        done = sender.done
        if done.error is not None:
            raise DemoFailed(f"the flights could not be sent: {done.error}") from done.error
        if story.leader and story.gap_ms is None:
            story.gap_ms = gap_ms(done.acknowledgements, killed_term)
            if story.gap_ms is not None:
                self._restart_killed(story.gap_ms, done.acknowledgements[-1].leader)
        if story.gap_ms is None:
            raise DemoFailed("all flights were sent before a leader could be killed: take more of them")
        story.send_s = done.ended - done.started
        rate = story.flights / story.send_s
        replayed = sum(acknowledgement.replayed for acknowledgement in done.acknowledgements)
        self.show.line(
            f"{done.sent:,} flights in {len(done.acknowledgements):,} appends, {story.send_s:.1f} s, "
            f"{rate:,.0f} a second, the fail-over included; {replayed} repeats found their record stored"
        )
        return Sent(done.content.count, done.content.hex, done.last_index)

    def _restart_killed(self, gap: int, leader: str) -> None:
        self.show.line(f"{leader} took over: appends paused for {gap / 1000:.2f} s")
        self.cluster.start_node(self.story.leader)
        pid = self.cluster.pid(self.story.leader)
        self.show.line(f"{self.story.leader} is started again (pid {pid}) and catches up")

    # --- Delta ---

    def wait_for_tables(self, sent: Sent) -> None:
        """Wait until every record, and every epoch, is in the Delta tables, and the job writes no more."""
        assert self._job is not None
        started = time.monotonic()
        stalled = Stalled("no row was written to the table", self._job)
        with self._client() as client:
            epochs = len(client.epochs())
        with self.show.bar("rows in the table entries", sent.records) as bar:
            while True:
                log = self._job.progress().get("logs", {}).get("default", {})
                rows = int(log.get("entries_rows", 0))
                bar.to(rows, "" if log else "(Spark starts)")
                complete = rows >= sent.records and log["materialized_index"] >= sent.last_index
                complete = complete and (log["typed"] or {}).get("typed_index", -1) >= sent.last_index
                if complete and log["epochs_rows"] >= epochs and cursor_is_beyond(client, sent.last_index):
                    break
                self._check_children()
                stalled.check(rows)
                time.sleep(POLL_EACH_S)
        self.story.into_delta_s = time.monotonic() - started
        self.show.line(f"every record is in Delta, {self.story.into_delta_s:.1f} s after the last append")

    # --- the proofs ---

    def read_nodes(self) -> None:
        """Read the whole log, and the epoch file, of each node."""
        with self._client() as client:
            try:
                wait_for_same_end(client, self.cluster.nodes, SAME_END_TIMEOUT_S)
                with self.show.bar("logs of the nodes read", len(self.cluster.nodes)) as bar:
                    for number, node in enumerate(self.cluster.nodes, start=1):
                        self.story.nodes.append(read_node_log(client, node))
                        bar.to(number)
            except (NodesDiffer, ClientError, OSError) as error:
                raise DemoFailed(f"the nodes' logs cannot be compared: {error}") from error

    def wait_for_events(self) -> None:
        """Wait until all events of the nodes so far, especially watermarks, are in the Delta tables."""
        assert self._job is not None
        stalled = Stalled("no event was written to the table", self._job)
        try:
            with self._client() as client:
                event_count = count_events(client, self.cluster.nodes)
        except ClientError as error:
            raise DemoFailed(f"the nodes' journals cannot be read: {error}") from error
        with self.show.bar("rows in the table events", event_count) as bar:
            while (rows := int(self._job.progress()["logs"]["default"]["events_rows"])) < event_count:
                bar.to(rows)
                self._check_children()
                stalled.check(rows)
                time.sleep(POLL_EACH_S)

    def start_spark_side(self) -> None:
        """Start the demo's own Spark: `await_findings` and `await_notebook` wait for its results."""
        folder = self.folder / "spark"
        arguments = ["--tables", str(self.folder / "tables"), "--endpoint", ",".join(self.cluster.urls)]
        arguments += ["--answer", str(self._answer), "--notebook", str(self._notebook)]
        arguments += ["--progress", str(self._spark_progress)]
        self._spark_side = ChildProcess(
            "app.demo.spark_side",
            arguments,
            log=folder / "proofs.log",
            pid_file=folder / "proofs.pid",
            environment=java_environment(),
        )
        self._stack.callback(self._spark_side.end, 2.0)

    def await_findings(self) -> None:
        """Wait for the results of Spark's queries, and keep them in the story."""
        self._await_spark(self._answer.exists, "Spark's queries of the tables")
        self.story.found = json.loads(self._answer.read_text("utf-8"))

    def prove(self, sent: Sent) -> list[Proof]:
        """Check every claim; `story.proofs` has them all, whether they hold or not."""
        story = self.story
        with self._client() as client:
            service_epochs = client.epochs()
        found = story.found
        nodes = [node.id for node in self.cluster.nodes]
        story.proofs = [
            *prove_entries(sent, found["entries"]),
            prove_typed(sent, found["typed"]),
            *prove_nodes(story.nodes, story.leader),
            *prove_epochs(found["epochs"], found["epoch_files"], service_epochs, nodes),
            prove_watermarks(found["watermarks"], service_epochs, nodes),
        ]
        return story.proofs

    def await_notebook(self) -> None:
        """Wait until Spark has run the first notebook on these tables, and keep its page in the story."""
        assert self._spark_side is not None
        spark_side = self._spark_side
        self._await_spark(lambda: not spark_side.running, "the notebook")
        self.story.notebook_html = self._notebook

    def stop_job(self) -> None:
        """End the Spark job, so that the next steps have the processors for themselves."""
        assert self._job is not None
        self._job.stop()
        self._job = None

    def watch(self) -> None:
        """Keep the cluster until a signal arrives, and report nodes that end."""
        while True:
            time.sleep(1.0)
            for node_id, words in self.cluster.fallen():
                self.show.line(f"{node_id} {words}")

    # --- what all steps need ---

    def _await_spark(self, done: Callable[[], bool], what: str) -> None:
        assert self._spark_side is not None
        deadline = time.monotonic() + SPARK_TIMEOUT_S
        with self.show.waiting(what) as waiting:
            while not done():
                if not self._spark_side.running and not done():
                    break
                if time.monotonic() > deadline:
                    raise DemoFailed(
                        f"{what} took longer than {SPARK_TIMEOUT_S:.0f} s; log: {self._spark_side.log}"
                    )
                self._check_children()
                waiting.note(read_note(self._spark_progress))
                time.sleep(POLL_EACH_S)
        if self._spark_side.exit_code:
            raise DemoFailed(f"{what} {self._spark_side.ending(ENDING_LINES)}")

    def _check_children(self) -> None:
        for node_id, words in self.cluster.fallen():
            raise DemoFailed(f"{node_id} {words}")
        if self._job is not None and (ending := self._job.fallen()) is not None:
            raise DemoFailed(f"the Spark job {ending}")

    def _client(self) -> CommitlogClient:
        return CommitlogClient(self.cluster.urls)


def read_note(file: Path) -> str:
    """Return what the Spark process does at present."""
    try:
        return file.read_text("utf-8")
    except FileNotFoundError:
        return "Spark starts"


def cursor_is_beyond(client: CommitlogClient, index: int) -> bool:
    """Return whether the job has moved its cursor beyond `index`: the move is the last record of the log."""
    try:
        return Operations(client).cursor(CURSOR).index > index
    except NotFound:
        return False


def java_environment() -> dict[str, str]:
    """Options for a short-lived JVM: compile quickly rather than well. Halves the processor time."""
    options = [os.environ.get("JDK_JAVA_OPTIONS", ""), "-XX:TieredStopAtLevel=1"]
    return {"JDK_JAVA_OPTIONS": " ".join(options).strip()}


class Stalled:
    """Raise DemoFailed when a count has not changed for STALLED_S."""

    def __init__(self, what: str, job: SparkJob | None = None) -> None:
        self._what = what
        self._log = "" if job is None else f"; log: {job.log}"
        self._count = -1
        self._moved_at = time.monotonic()

    def check(self, count: int) -> None:
        if count != self._count:
            self._count, self._moved_at = count, time.monotonic()
        elif time.monotonic() - self._moved_at > STALLED_S:
            raise DemoFailed(f"{self._what} for {STALLED_S:.0f} s{self._log}")
