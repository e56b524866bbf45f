"""The files of conf/deploy: they name what exists, and fit one another."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from app.settings.file import load
from app.settings.private_files import objection
from tests.support.cluster import Cluster

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "conf" / "deploy"
OPERATIONS = ROOT / "docs" / "operations.md"
METRIC = re.compile(r"\bcommitlog_[a-z_]+")
NAME = {"app.kubernetes.io/name": "commitlog"}
KINDS = {
    "StatefulSet": "apps/v1",
    "Service": "v1",
    "ConfigMap": "v1",
    "Secret": "v1",
    "PodDisruptionBudget": "policy/v1",
}


def objects() -> Iterator[dict[str, Any]]:
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        yield from yaml.safe_load_all(path.read_text())


def one(kind: str, name: str = "commitlog") -> dict[str, Any]:
    (found,) = [o for o in objects() if o["kind"] == kind and o["metadata"]["name"] == name]
    return found


def test_every_object_has_its_api_and_labels() -> None:
    found = list(objects())
    assert {o["kind"]: o["apiVersion"] for o in found} == KINDS
    assert all(o["metadata"]["labels"] == NAME for o in found)


def test_the_stateful_set_refers_to_the_other_objects() -> None:
    spec = one("StatefulSet")["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"] == NAME
    peers = one("Service", spec["serviceName"])["spec"]
    assert (peers["clusterIP"], peers["publishNotReadyAddresses"]) == ("None", True)
    for service in (peers, one("Service")["spec"]):
        assert service["selector"] == NAME
        assert all(ports[port["targetPort"]] == port["port"] for port in service["ports"])
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        check = container[probe]["httpGet"]
        assert (check["path"], check["port"]) == (
            "/readyz" if probe == "readinessProbe" else "/healthz",
            "rest",
        )
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    claims = {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == {*volumes, *claims}
    assert volumes["config"]["configMap"]["name"] == one("ConfigMap")["metadata"]["name"]
    assert volumes["secret"]["secret"]["secretName"] == one("Secret")["metadata"]["name"]
    assert objection(volumes["secret"]["secret"]["defaultMode"], owner=0) is None  # mounted as files of root
    budget = one("PodDisruptionBudget")["spec"]
    assert (budget["maxUnavailable"], budget["selector"]["matchLabels"]) == (1, NAME)


def configurations(folder: Path) -> Iterator[tuple[str, Path]]:
    (folder / "kubernetes.toml").write_text(one("ConfigMap")["data"]["cluster.toml"])
    yield "kubernetes", folder / "kubernetes.toml"
    yield "compose", DEPLOY / "compose.toml"


def test_the_configurations_are_valid_and_reach_their_nodes(tmp_path: Path) -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    hosts = {
        "kubernetes": [
            f"commitlog-{number}.commitlog-peers" for number in range(one("StatefulSet")["spec"]["replicas"])
        ],
        "compose": list(compose["services"]),
    }
    for name, path in configurations(tmp_path):
        settings = load(path, "n1")
        assert [str(node.url) for node in settings.nodes] == [f"http://{host}:8101" for host in hosts[name]]
        assert [str(node.peer_address) for node in settings.nodes] == [f"{host}:9101" for host in hosts[name]]
        assert all(str(node.data).startswith("/var/lib/commitlog/") for node in settings.nodes)
        assert settings.security.cluster_secret_file is not None
    for node, service in compose["services"].items():
        assert service["command"][-1] == node
        assert service["ports"][0].startswith("127.0.0.1:")
        assert service["volumes"] == [f"{node}:/var/lib/commitlog"]
        assert node in compose["volumes"]
    secret = str(settings.security.cluster_secret_file)
    assert secret.removeprefix("/run/secrets/") in compose["secrets"]


def test_a_node_has_no_more_rights_than_it_needs() -> None:
    pod = one("StatefulSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert not pod["automountServiceAccountToken"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    for service in yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values():
        assert (service["cap_drop"], service["read_only"]) == (["ALL"], True)
        assert service["security_opt"] == ["no-new-privileges:true"]
    unit = (DEPLOY / "commitlog@.service").read_text().splitlines()
    wanted = {"UMask=0077", "StateDirectoryMode=0700", "CapabilityBoundingSet=", "NoNewPrivileges=true"}
    assert wanted <= set(unit)


def test_the_secret_of_the_example_is_refused() -> None:
    assert len(one("Secret")["stringData"]["cluster.secret"]) < 16  # bytes that a node requires


def test_the_unit_starts_the_node_that_its_name_contains() -> None:
    unit = (DEPLOY / "commitlog@.service").read_text()
    assert "serve --config /etc/commitlog/cluster.toml --node %i\n" in unit
    assert "RestartPreventExitStatus=2\n" in unit


def expressions() -> Iterator[tuple[str, str]]:
    for panel in json.loads((DEPLOY / "grafana_dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for group in yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
            assert rule["labels"]["severity"] in ("warning", "critical")
            assert rule["annotations"]["summary"]
            yield rule["alert"], rule["expr"]


def test_each_metric_that_names_an_alert_has_a_rule() -> None:
    rows = re.findall(r"^\| `(commitlog_\w+)` \|.*\bAlert\b", OPERATIONS.read_text(), re.MULTILINE)
    assert len(rows) > 15
    rules = (DEPLOY / "alerts.yaml").read_text()
    assert [name for name in rows if name not in rules] == []


def tool(name: str) -> str:
    """Path of a validator, from `make deploy-check` or the machine; the test is skipped without it."""
    own = ROOT / ".cache" / "deploy" / "bin" / name
    found = str(own) if own.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: make deploy-check")
    return found


def validate(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_every_alert_fires_in_its_case_and_no_other() -> None:
    promtool = tool("promtool")
    validate(promtool, "check", "rules", DEPLOY / "alerts.yaml")
    cases = Path(__file__).with_name("alert_rules_test.yaml")
    validate(promtool, "test", "rules", cases)
    alerts = re.findall(r"- alert: (\w+)", (DEPLOY / "alerts.yaml").read_text())
    assert sorted(alerts) == sorted(re.findall(r'alertname="(\w+)"', cases.read_text()))


def test_the_metrics_follow_the_conventions_of_prometheus(cluster: Cluster) -> None:
    text = httpx.get(f"http://127.0.0.1:{cluster.rest_ports['n1']}/metrics", timeout=30).text
    done = subprocess.run(
        [tool("promtool"), "check", "metrics"], input=text, capture_output=True, text=True, timeout=60
    )
    assert "error" not in done.stderr, done.stderr


def test_the_objects_of_kubernetes_match_its_schema() -> None:
    files = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    validate(tool("kubernetes-validate"), "--strict", *files)


def test_the_compose_file_matches_its_specification(tmp_path: Path) -> None:
    folder = tmp_path / "conf" / "deploy"
    shutil.copytree(DEPLOY, folder)
    (folder / "cluster.secret").write_text("0" * 64)
    document = yaml.safe_load(validate(tool("compose"), folder / "compose.yaml"))
    assert sorted(document["services"]) == ["n1", "n2", "n3"]


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "commitlog@.service").read_text()
    (tmp_path / "commitlog@.service").write_text(unit.replace("/opt/commitlog/bin/commitlog", sys.executable))
    assert "commitlog@" not in validate(tool("systemd-analyze"), "verify", tmp_path / "commitlog@.service")


@pytest.mark.parametrize("path", ["grafana_dashboard.json", "alerts.yaml"])
def test_brackets_are_balanced(path: str) -> None:
    for title, expression in expressions():
        assert all(expression.count(a) == expression.count(b) for a, b in ("()", "[]", "{}")), (path, title)


def test_every_metric_of_the_dashboard_and_the_alerts_exists(cluster: Cluster) -> None:
    text = httpx.get(f"http://127.0.0.1:{cluster.rest_ports['n1']}/metrics", timeout=30).text
    known = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    known |= {f"{name}_{part}" for name in known for part in ("bucket", "sum", "count")}
    asked = {(title, name) for title, text in expressions() for name in METRIC.findall(text)}
    assert len(asked) > 25
    assert {(title, name) for title, name in asked if name not in known} == set()
