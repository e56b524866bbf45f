"""Three Kafka brokers in KRaft mode on 127.0.0.1, from jars: each is a controller too."""

import contextlib
import json
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support.cluster import eventually, free_ports

COUNT = 3
ONE_IN_FLIGHT = Path(__file__).parent / "OneInFlight.java"  # compiled by `java` when it runs
CLUSTER_ID = "Y29tbWl0bG9nLWJlbmNoIQ"
START_TIMEOUT_S = 180.0
TOOL_TIMEOUT_S = 300.0
HEAP = "1g"
LOGGING = """rootLogger.level=warn
rootLogger.appenderRef.c.ref=c
appender.c.type=Console
appender.c.name=c
appender.c.target=SYSTEM_ERR
appender.c.layout.type=PatternLayout
appender.c.layout.pattern=%d %p %m (%c)%n
"""


class Brokers:
    """A Kafka cluster with replication factor 3 and min.insync.replicas 2; topics of one partition."""

    def __init__(self, folder: Path, java: Path, jars: Sequence[Path]) -> None:
        """folder: for data and lines, empty. jars: Kafka's, with its tools."""
        self._folder = folder
        self._java = str(java)
        self._classpath = ":".join(str(jar) for jar in jars)
        self._processes: list[subprocess.Popen[bytes]] = []
        ports = free_ports(2 * COUNT)
        self._ports, self._controller_ports = ports[:COUNT], ports[COUNT:]
        self._logging = folder / "log4j2.properties"
        self._logging.write_text(LOGGING)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def start(self) -> None:
        """Start the brokers, and wait until all of them answer."""
        for number in range(1, COUNT + 1):
            config = self._folder / f"b{number}.properties"
            config.write_text(self._configuration(number))
            self._tool("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(config))
        for number in range(1, COUNT + 1):
            config = self._folder / f"b{number}.properties"
            command = self._command("kafka.Kafka", str(config), heap=HEAP, options=("-XX:+UseG1GC",))
            with (self._folder / f"b{number}.log").open("ab") as lines:
                self._processes.append(subprocess.Popen(command, stdout=lines, stderr=lines))
        for port in self._ports:
            eventually(lambda port=port: self._answers(port), what="a broker", timeout_s=START_TIMEOUT_S)
        self.create_topic("first")  # needs a controller and all the brokers
        self.delete_topic("first")

    def close(self) -> None:
        """End the brokers; their data is to be thrown away."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait(10)
        self._processes.clear()

    def create_topic(self, topic: str, *settings: str) -> None:
        def created() -> bool:
            layout = ["--partitions", "1", "--replication-factor", str(COUNT)]
            layout += [word for setting in settings for word in ("--config", setting)]
            with contextlib.suppress(subprocess.CalledProcessError):  # a broker is not registered yet
                self._topics("--create", "--if-not-exists", "--topic", topic, *layout)
                return True
            return False

        eventually(created, what=f"topic {topic}", timeout_s=START_TIMEOUT_S)

    def delete_topic(self, topic: str) -> None:
        self._topics("--delete", "--topic", topic)

    def produce(
        self, topic: str, records: int, record_bytes: int, *properties: str, warm_up_records: int = 0
    ) -> str:
        """Run Kafka's own load: random letters, acks=all. Returns its report, which leaves the first
        warm_up_records out."""
        load = ["--num-records", str(records), "--record-size", str(record_bytes), "--throughput", "-1"]
        if warm_up_records:
            load += ["--warmup-records", str(warm_up_records)]
        settings = [word for name in ("acks=all", *properties) for word in ("--command-property", name)]
        tool = "org.apache.kafka.tools.ProducerPerformance"
        lines = self._tool(tool, "--bootstrap-server", self.bootstrap, "--topic", topic, *load, *settings)
        return lines.strip().splitlines()[-1]

    def consume(self, topic: str, records: int) -> float:
        """Run Kafka's own consumer; return its records per second without the time to join its group."""
        tool = "org.apache.kafka.tools.ConsumerPerformance"
        wanted = ("--num-records", str(records), "--timeout", "60000")
        lines = self._tool(tool, "--bootstrap-server", self.bootstrap, "--topic", topic, *wanted).splitlines()
        names, values = ([word.strip() for word in line.split(",")] for line in lines[-2:])
        return float(dict(zip(names, values, strict=True))["fetch.nMsg.sec"])

    def send_one_by_one(
        self, topic: str, record_bytes: int, warm_up_s: float, seconds: float
    ) -> dict[str, float]:
        """Send records with one in flight; return records_per_s, p50_ms and p99_ms. Needs a JDK."""
        settings = (self.bootstrap, topic, str(record_bytes), str(warm_up_s), str(seconds))
        found: dict[str, float] = json.loads(self._tool(str(ONE_IN_FLIGHT), *settings).splitlines()[-1])
        return found

    def end_offset(self, topic: str) -> int:
        tool = "org.apache.kafka.tools.GetOffsetShell"
        answer = self._tool(tool, "--bootstrap-server", self.bootstrap, "--topic", topic)
        return int(answer.strip().splitlines()[-1].split(":")[2])

    def _topics(self, *arguments: str) -> None:
        tool = "org.apache.kafka.tools.TopicCommand"
        self._tool(tool, "--bootstrap-server", self.bootstrap, *arguments)

    def _tool(self, name: str, *arguments: str) -> str:
        command = self._command(name, *arguments, heap=HEAP)
        run = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S)
        if run.returncode != 0:
            (self._folder / "tools.log").open("a").write(run.stdout + run.stderr)
            raise subprocess.CalledProcessError(run.returncode, name, run.stdout, run.stderr)
        return run.stdout

    def _command(self, name: str, *arguments: str, heap: str, options: Sequence[str] = ()) -> list[str]:
        own = [f"-Xms{heap}", f"-Xmx{heap}", *options, f"-Dlog4j2.configurationFile={self._logging}"]
        return [self._java, *own, "-cp", self._classpath, name, *arguments]

    def _answers(self, port: int) -> bool:
        for process in self._processes:
            assert process.poll() is None, "a broker has ended; see its lines in the folder"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    def _configuration(self, number: int) -> str:
        voters = ",".join(f"{at}@127.0.0.1:{port}" for at, port in enumerate(self._controller_ports, 1))
        port, controller_port = self._ports[number - 1], self._controller_ports[number - 1]
        settings: dict[str, Any] = {
            "process.roles": "broker,controller",
            "node.id": number,
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": self._folder / f"b{number}",
            "default.replication.factor": COUNT,
            "min.insync.replicas": 2,
            "offsets.topic.replication.factor": COUNT,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": COUNT,
            "transaction.state.log.num.partitions": 1,
            "share.coordinator.state.topic.replication.factor": COUNT,
            "share.coordinator.state.topic.num.partitions": 1,
            "group.initial.rebalance.delay.ms": 0,
            "log.retention.hours": -1,
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())


@contextlib.contextmanager
def running_brokers(folder: Path, java: Path, jars: Sequence[Path]) -> Iterator[Brokers]:
    """Brokers that answer; ended at the end."""
    brokers = Brokers(folder, java, jars)
    try:
        brokers.start()
        yield brokers
    finally:
        brokers.close()
