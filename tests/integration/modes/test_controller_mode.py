"""Logs in controller mode on real nodes: elections, masters and controllers that die, loss receipts."""

import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pyarrow as pa
import pytest

from app.controller.config import ControllerConfig
from tests.support.cluster import Cluster, eventually, running

WAIT_S = 45.0  # a node that starts on a busy machine takes its time


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("controller"), 3) as cluster:
        yield cluster


@pytest.fixture
def cluster(nodes: Cluster) -> Cluster:
    """All nodes up and ready, whatever the test before has done to them."""
    nodes.restore()
    return nodes


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Return the name of this test's own log."""
    return re.sub(r"[^a-z0-9]+", "-", request.node.name)[:100].strip("-")


def create(cluster: Cluster, name: str, node: str = "n1", **settings: Any) -> dict[str, Any]:
    answer = cluster.call(
        "POST", node, "/v1/logs", json={"name": name, "replication": "controller", **settings}
    )
    assert answer.status_code in (200, 201), answer.text
    log: dict[str, Any] = answer.json()
    return log


def log_settings(cluster: Cluster, name: str) -> dict[str, Any]:
    answer = cluster.get(cluster.running[0], f"/v1/logs/{name}")
    log: dict[str, Any] = answer.json()
    assert answer.status_code in (200, 503), log
    return log


def wait_in_sync(cluster: Cluster, name: str, *nodes: str) -> dict[str, Any]:
    def in_sync() -> dict[str, Any] | None:
        log = log_settings(cluster, name)
        return log if sorted(log.get("sync_state_set") or ()) == sorted(nodes) and log["master"] else None

    return eventually(in_sync, what=f"{nodes} are in sync", timeout_s=WAIT_S)


def wait_acknowledged(cluster: Cluster, name: str, value: str) -> dict[str, Any]:
    def acknowledged() -> dict[str, Any] | None:
        answer = cluster.append(cluster.running[0], value, log=name)
        return answer.json() if answer.status_code == 200 else None

    return eventually(acknowledged, what="an append is acknowledged", timeout_s=WAIT_S)


def active_controller(cluster: Cluster) -> str:
    return cluster.leader("__controller")


class Producer:
    """Appends numbers one after the other through the nodes that live, and notes what was acknowledged."""

    def __init__(self, cluster: Cluster, log: str) -> None:
        self._cluster = cluster
        self._log = log
        self._stop = threading.Event()
        self.acknowledged: list[tuple[float, str]] = []
        self.nodes = list(cluster.ids)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Producer":
        self._thread.start()
        self.wait_for(5)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        with httpx.Client(timeout=2.0) as client:
            while not self._stop.is_set():
                node = self.nodes[number % len(self.nodes)]
                value = f"v{number}"
                number += 1
                try:
                    answer = client.post(
                        f"{self._cluster.url(node)}/v1/logs/{self._log}/records?timeout_ms=1000",
                        json={"records": [{"value": value}]},
                    )
                except httpx.TransportError:
                    continue
                if answer.status_code == 200:
                    self.acknowledged.append((time.monotonic(), value))

    def wait_for(self, more: int) -> None:
        """Until so many more appends have been acknowledged."""
        wanted = len(self.acknowledged) + more
        eventually(
            lambda: len(self.acknowledged) >= wanted, what="appends are acknowledged", timeout_s=WAIT_S
        )

    @property
    def values(self) -> list[str]:
        return [value for _, value in self.acknowledged]


@pytest.mark.rule("C-05", "C-12", "A-12")
@pytest.mark.parametrize("replicas", [["n1", "n2", "n3"], ["n1", "n2"]])
def test_a_killed_master_is_replaced_and_nothing_acknowledged_is_lost(
    cluster: Cluster, name: str, replicas: list[str]
) -> None:
    create(cluster, name, replicas=replicas)
    wait_in_sync(cluster, name, *replicas)
    with Producer(cluster, name) as producer:
        producer.wait_for(20)
        master = log_settings(cluster, name)["master"]
        epoch = log_settings(cluster, name)["epoch"]
        producer.nodes.remove(master)
        cluster.kill(master)
        producer.wait_for(20)
        cluster.start(master)
        cluster.wait_ready()
        log = wait_in_sync(cluster, name, *replicas)
    assert log["epoch"] > epoch
    for node in replicas:
        values = cluster.values(node, name)
        missing = [value for value in producer.values if value not in values]
        assert missing == []
    assert cluster.values(replicas[0], name) == cluster.values(replicas[1], name)


@pytest.mark.rule("C-02", "C-10", "A-11")
def test_producers_do_not_notice_the_death_of_the_active_controller(cluster: Cluster, name: str) -> None:
    active = active_controller(cluster)
    others = [node for node in cluster.ids if node != active]
    create(cluster, name, replicas=others)
    wait_in_sync(cluster, name, *others)
    epoch = log_settings(cluster, name)["epoch"]
    with Producer(cluster, name) as producer:
        producer.nodes.remove(active)
        producer.wait_for(20)
        cluster.kill(active)
        old_leases_end = time.monotonic() + ControllerConfig().lease_ms / 1000
        eventually(lambda: active_controller(cluster) in others, what="another controller is active")
        eventually(
            lambda: producer.acknowledged[-1][0] > old_leases_end,
            what="an append is acknowledged with a lease of the new controller",
            timeout_s=WAIT_S,
        )
        create(cluster, f"{name}-b", node=others[0], replicas=others)  # and it does its work
        producer.wait_for(10)
    assert log_settings(cluster, name)["epoch"] == epoch


@pytest.mark.rule("C-05", "A-11")
def test_an_operator_moves_the_master_and_one_that_stops_gives_it_up(cluster: Cluster, name: str) -> None:
    create(cluster, name, preferred="n1")
    wait_in_sync(cluster, name, "n1", "n2", "n3")
    with Producer(cluster, name) as producer:
        answer = cluster.call("POST", "n2", f"/v1/logs/{name}:elect", json={"candidate": "n3"})
        assert answer.status_code == 200, answer.text
        assert (answer.json()["master"], answer.json()["elected"]) == ("n3", True)
        producer.wait_for(5)
        wait_in_sync(cluster, name, "n1", "n2", "n3")
        producer.nodes.remove("n3")
        assert cluster.stop("n3") == 0
        producer.wait_for(5)
    log = log_settings(cluster, name)
    assert log["master"] in ("n1", "n2")
    stays = cluster.call("POST", "n2", f"/v1/logs/{name}:elect", json={})
    assert (stays.status_code, stays.json()["elected"]) == (200, False)
    nobody = cluster.call("POST", "n2", f"/v1/logs/{name}:elect", json={"candidate": "n3"})
    assert (nobody.status_code, nobody.json()["code"]) == (409, "no-eligible-replica")
    raft = cluster.call("POST", "n2", "/v1/logs/default:elect", json={})
    assert (raft.status_code, raft.json()["code"]) == (422, "invalid-request")


@pytest.mark.rule("C-05", "C-12")
def test_leader_transfer_elects_the_named_member_of_the_set(cluster: Cluster, name: str) -> None:
    create(cluster, name, priorities={"n1": 1})
    wait_in_sync(cluster, name, "n1", "n2", "n3")

    def transfer(**asked: str) -> httpx.Response:
        return cluster.call("POST", "n3", "/v1/cluster/leader:transfer", json={"log": name, **asked})

    with Producer(cluster, name) as producer:
        producer.wait_for(5)
        moved = transfer(to="n2")
        assert moved.status_code == 200, moved.text
        assert (moved.json()["log"], moved.json()["leader"]) == (name, "n2")
        producer.wait_for(5)
    eventually(
        lambda: (
            (log_settings(cluster, name)["master"], log_settings(cluster, name)["epoch"])
            == ("n2", moved.json()["term"])
        ),
        what="the node that is asked knows the new master",
        timeout_s=WAIT_S,
    )
    again = transfer(to="n2")
    assert (again.status_code, again.json()["code"]) == (409, "already-leader")
    unknown = transfer(to="n9")
    assert (unknown.status_code, unknown.json()["code"]) == (409, "transfer-failed")
    wait_in_sync(cluster, name, "n1", "n2", "n3")
    anyone = transfer()
    assert anyone.status_code == 200, anyone.text
    assert anyone.json()["leader"] in ("n1", "n3")


@pytest.mark.rule("C-11")
def test_the_answer_to_a_change_of_a_replica_has_its_new_role(cluster: Cluster, name: str) -> None:
    create(cluster, name, replicas=["n1", "n3"])
    wait_in_sync(cluster, name, "n1", "n3")
    for method, action, role in (
        ("POST", ":demote", "learner"),
        ("POST", ":promote", "voter"),
        ("DELETE", "", None),
    ):
        changed = cluster.call(method, "n2", f"/v1/cluster/members/n3{action}", params={"log": name})
        assert changed.status_code == 200, changed.text
        roles = {member["id"]: member["role"] for member in changed.json()["members"]}
        assert roles == {"n1": "voter", "n2": None, "n3": role}
    assert "role" not in cluster.get("n2", "/v1/cluster/members").json()["members"][0]


@pytest.mark.rule("C-02", "C-12")
def test_acks_by_a_part_of_the_set_and_settings_of_the_controllers_change_at_run_time(
    cluster: Cluster, name: str
) -> None:
    created = create(cluster, name, in_sync_replicas=2)
    assert created["in_sync_replicas"] == 2
    wait_in_sync(cluster, name, "n1", "n2", "n3")
    wait_acknowledged(cluster, name, "kept by two")
    before = cluster.get("n1", "/v1/cluster/controller")
    assert before.status_code == 200, before.text
    changed = cluster.call("PATCH", "n2", "/v1/cluster/controller", json={"broker_timeout_ms": 2_500})
    assert changed.status_code == 200, changed.text
    assert changed.json()["changed"] == {"broker_timeout_ms": 2_500}
    stale = cluster.call(
        "PATCH", "n3", "/v1/cluster/controller", json={"lease_ms": 1_200}, headers={"If-Match": '"0"'}
    )
    assert (stale.status_code, stale.json()["code"]) == (412, "config-changed")
    bad = cluster.call("PATCH", "n3", "/v1/cluster/controller", json={"lease_ms": 9_000})
    assert (bad.status_code, bad.json()["code"]) == (422, "invalid-request")
    with Producer(cluster, name) as producer:
        producer.wait_for(5)
        master = log_settings(cluster, name)["master"]
        producer.nodes.remove(master)
        cluster.kill(master)
        producer.wait_for(5)
    assert log_settings(cluster, name)["master"] != master
    back = cluster.call(
        "PATCH", cluster.running[0], "/v1/cluster/controller", json={"broker_timeout_ms": None}
    )
    assert back.json()["changed"] == {}


@pytest.mark.rule("C-05", "A-04")
def test_records_lost_by_an_unclean_election_are_in_a_receipt_that_an_event_names(
    cluster: Cluster, name: str
) -> None:
    create(cluster, name, replicas=["n1", "n2"])
    master = wait_in_sync(cluster, name, "n1", "n2")["master"]
    slave = {"n1": "n2", "n2": "n1"}[master]
    wait_acknowledged(cluster, name, "kept")
    cluster.kill(slave)
    wait_in_sync(cluster, name, master)
    lost = cluster.append(master, "lost 1", "lost 2", log=name).json()
    cluster.kill(master)
    cluster.start(slave)
    eventually(
        lambda: log_settings(cluster, name).get("master", "unknown") is None,
        what="nobody in sync lives",
        timeout_s=WAIT_S,
    )
    refused = cluster.call("POST", "n3", f"/v1/logs/{name}:elect", json={"candidate": slave})
    assert (refused.status_code, refused.json()["code"]) == (409, "no-eligible-replica")

    def elected() -> dict[str, Any] | None:
        answer = cluster.call(
            "POST", "n3", f"/v1/logs/{name}:elect", json={"candidate": slave, "unclean": True}
        )
        return answer.json() if answer.status_code == 200 else None

    election = eventually(elected, what="an unclean election", timeout_s=WAIT_S)
    assert (election["master"], election["unclean"]) == (slave, True)
    wait_acknowledged(cluster, name, "new")
    cluster.start(master)
    wait_in_sync(cluster, name, "n1", "n2")
    cluster.wait_ready()
    assert set(cluster.values(master, name)) == {"kept", "new"}
    assert cluster.values(master, name, consistency="local") == cluster.values(slave, name)
    events = cluster.get(master, f"/v1/logs/{name}/events", params={"limit": 10_000}).json()["events"]
    cut = next(
        event["data"] for event in events if event["kind"] == "truncate" and "receipt" in event["data"]
    )
    receipt = pa.ipc.open_file((cluster.folder / master / cut["receipt"]).read_bytes()).read_all()
    rows = [row for row in receipt.to_pylist() if row["type"] == "data"]
    assert [row["value"] for row in rows] == [b"lost 1", b"lost 2"]
    assert [row["index"] for row in rows] == [lost["first_index"], lost["last_index"]]
    story = [event["data"] for event in events if event["kind"] == "election"]
    assert [each["unclean"] for each in story if each["master"] == slave][-1] is True


@pytest.mark.rule("C-04", "C-09", "C-10")
def test_a_cluster_that_starts_again_knows_its_logs_and_its_epochs(cluster: Cluster, name: str) -> None:
    create(cluster, name)
    log = wait_in_sync(cluster, name, "n1", "n2", "n3")
    wait_acknowledged(cluster, name, "before")
    for node in cluster.ids:
        cluster.kill(node)
    cluster.start()
    wait_acknowledged(cluster, name, "after")
    cluster.wait_ready()
    again = wait_in_sync(cluster, name, "n1", "n2", "n3")
    assert again["id"] == log["id"]
    assert again["epoch"] > log["epoch"]
    assert cluster.values(again["master"], name) == ["before", "after"]


@pytest.mark.rule("C-03", "C-05")
def test_a_damaged_copy_is_repaired_and_stays_the_same_replica(cluster: Cluster, name: str) -> None:
    """The batches of another copy are in the place of the damaged ones, so nothing is missing."""
    create(cluster, name, preferred="n1")
    wait_in_sync(cluster, name, "n1", "n2", "n3")
    for number in range(20):
        wait_acknowledged(cluster, name, f"v{number}")
    slave = next(node for node in cluster.ids if node != log_settings(cluster, name)["master"])
    folder = cluster.folder / slave / "logs" / name
    identity = (folder / "replica").read_bytes()
    assert cluster.stop(slave) == 0
    segment = max(folder.glob("*.log"), key=lambda path: path.stat().st_size)
    data = bytearray(segment.read_bytes())
    data[3_000] ^= 0xFF
    segment.write_bytes(data)
    cluster.start(slave)
    cluster.wait_ready()

    def repaired() -> bool:
        cluster.get(slave, f"/v1/logs/{name}/records", params={"consistency": "local"})  # finds the damage
        return segment.read_bytes()[3_000] == data[3_000] ^ 0xFF

    eventually(repaired, what="the damage is repaired", timeout_s=WAIT_S)
    wait_in_sync(cluster, name, "n1", "n2", "n3")
    cluster.wait_ready()
    assert cluster.values(slave, name) == [f"v{number}" for number in range(20)]
    assert (folder / "replica").read_bytes() == identity


@pytest.mark.rule("C-03", "C-05")
def test_damaged_small_files_of_the_only_copy_in_sync_cost_it_nothing(cluster: Cluster, name: str) -> None:
    """Its records are all there: it keeps its identity, and with it the place in the SyncStateSet."""
    create(cluster, name, replicas=["n1", "n2"], preferred="n1")
    wait_in_sync(cluster, name, "n1", "n2")
    wait_acknowledged(cluster, name, "both")
    cluster.kill("n2")
    wait_in_sync(cluster, name, "n1")
    wait_acknowledged(cluster, name, "n1 alone")
    assert cluster.stop("n1") == 0
    folder = cluster.folder / "n1" / "logs" / name
    for file in ("checkpoint", "state"):
        data = bytearray((folder / file).read_bytes())
        data[len(data) // 2] ^= 0xFF
        (folder / file).write_bytes(data)
    cluster.start("n1")
    wait_in_sync(cluster, name, "n1")
    wait_acknowledged(cluster, name, "after")
    values = cluster.values("n1", name)
    assert [value for value in ("both", "n1 alone", "after") if value in values] == [
        "both",
        "n1 alone",
        "after",
    ]
