"""Configuration files: a node runs with their values; invalid values are refused."""

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.errors import ConfigError
from app.log.contract import Durability
from app.serve import check_security
from app.settings.addresses import is_loopback
from app.settings.file import load, parse
from app.settings.model import AppendFront, SecuritySettings
from app.telemetry import LineFormatter

CONF = Path(__file__).parents[3] / "conf"


def document(**sections: Any) -> dict[str, Any]:
    nodes = [
        {
            "id": f"n{k}",
            "listen": f"127.0.0.1:810{k}",
            "peer_listen": f"127.0.0.1:910{k}",
            "data": f"data/n{k}",
        }
        for k in (1, 2, 3)
    ]
    return {"cluster": {"id": "c"}, "nodes": nodes, **sections}


@pytest.mark.parametrize(
    ("name", "nodes"), [("one_node.toml", 1), ("three_nodes.toml", 3), ("five_nodes.toml", 5)]
)
def test_the_files_of_the_repository(name: str, nodes: int) -> None:
    settings = load(CONF / name, f"n{nodes}")
    assert len(settings.nodes) == nodes
    assert settings.node.id == f"n{nodes}"
    assert [log.name for log in settings.logs] == ["default"]
    assert len(settings.logs[0].replicas) == nodes


def test_defaults() -> None:
    settings = parse(document(), "n2")
    (log,) = settings.logs
    assert (log.name, log.durability, log.replicas) == ("default", Durability.FSYNC, ("n1", "n2", "n3"))
    assert settings.node.url == "http://127.0.0.1:8102"
    assert settings.node.peer_address == "127.0.0.1:9102"
    assert settings.http.append_front is AppendFront.LANE
    assert settings.raft.election_timeout_ms == (500, 1000)


def test_sections_reach_the_parts() -> None:
    settings = parse(
        document(
            raft={"election_timeout_ms": [300, 600], "heartbeat_interval_ms": 50},
            storage={"segment_max_bytes": 1_000_000},
            limits={"idempotency_ms": 5},
            http={"append_front": "fastapi"},
            logs=[
                {"name": "a", "durability": "replicated", "replicas": ["n3", "n1"]},
                {"name": "b", "replicas": 1},
            ],
        ),
        "n1",
    )
    assert settings.raft.election_timeout_ms == (300, 600)
    assert settings.storage.segment_max_bytes == 1_000_000
    assert settings.limits.idempotency_ms == 5
    assert settings.http.append_front is AppendFront.FASTAPI
    logs = {log.name: log for log in settings.logs}
    assert list(logs) == ["default", "a", "b"]
    assert (logs["a"].replicas, logs["a"].durability) == (("n1", "n3"), Durability.REPLICATED)
    assert logs["b"].replicas == ("n1",)


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        ({"raftt": {}}, "raftt: unknown key"),
        ({"raft": {"election_timeout": 1}}, "raft.election_timeout: unknown key"),
        ({"raft": {"election_timeout_ms": [1000, 500]}}, r"\[raft\] election_timeout_ms"),
        ({"limits": {"max_record_bytes": 0}}, r"\[limits\] max_record_bytes"),
        ({"limits": {"max_record_bytes": "many"}}, "limits.max_record_bytes: .*integer.*, got 'many'$"),
        ({"raft": {"election_timeout_ms": 500}}, "^raft.election_timeout_ms: must be .*array, got 500$"),
        ({"http": {"append_front": "cgi"}}, "http.append_front: .*, got 'cgi'$"),
        ({"storage": {"segment_max_bytes": -1}}, r"\[storage\]"),
        ({"cluster": {}}, "^cluster.id: is required$"),
        ({"nodes": []}, "^nodes: the number of entries must be at least 1, got 0$"),
        ({"logs": [{"name": "Bad Name"}]}, "logs.0.name"),
        ({"logs": [{"name": "__x"}]}, "logs.0.name"),
        ({"logs": [{"name": "a"}, {"name": "a"}]}, "name must be unique: a, a"),
        ({"logs": [{"name": "a", "replicas": ["n9"]}]}, "unknown nodes n9"),
        ({"logs": [{"name": "a", "replicas": 4}]}, "replicas must be between 1 and 3, got 4"),
        ({"logs": [{"name": "a", "replication": "magic"}]}, "logs.0.replication"),
        ({"security": {"tls_key": "k"}}, "must be set together"),
    ],
)
def test_invalid_settings_are_refused(sections: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse(document(**sections), "n1")


def test_a_list_whose_only_entry_is_invalid_is_not_also_called_empty() -> None:
    nodes = [{"id": "n1", "listen": "127.0.0.1:1", "peer_listen": "127.0.0.1:2", "data": "d", "bogus": 1}]
    with pytest.raises(ConfigError, match=r"^nodes\.0\.bogus: unknown key$"):
        parse(document(nodes=nodes), "n1")


def test_nodes_must_differ_and_be_known() -> None:
    with pytest.raises(ConfigError, match="no node 'n9'"):
        parse(document(), "n9")
    twice = document()
    twice["nodes"][1]["id"] = "n1"
    with pytest.raises(ConfigError, match="id must be unique: n1, n1, n3"):
        parse(twice, "n1")
    shared = document()
    shared["nodes"][1]["data"] = "data/n1"
    with pytest.raises(ConfigError, match="data must be unique: data/n1, data/n1, "):
        parse(shared, "n1")
    strange = document()
    strange["nodes"][0]["listen"] = "8101"
    with pytest.raises(ConfigError, match=r"must be host:port .* got '8101'"):
        parse(strange, "n1")


@pytest.mark.rule("A-07")
def test_a_long_ha_address_needs_the_handshake_by_number() -> None:
    """Names of Kubernetes services are longer than the 50 bytes of the seed's handshake."""
    address = "commitlog-0.commitlog-headless.production.svc.cluster.local:10101"
    given = document()
    given["nodes"][0]["ha_address"] = address
    settings = parse(given, "n1")
    assert settings.ha.speaks_by_number(address)
    assert not settings.ha.speaks_by_number("10.0.0.1:10101")
    given["ha"] = {"ha_handshake_by_number": False}
    with pytest.raises(ConfigError, match=r"n1.ha_address must be at most 50 bytes .* got 65"):
        parse(given, "n1")
    assert parse(given, "n2")  # its own address is short


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "nothing.toml", "n1")
    broken = tmp_path / "broken.toml"
    broken.write_text("[cluster\n")
    with pytest.raises(ConfigError, match=r"broken\.toml"):
        load(broken, "n1")


def test_beyond_this_machine_only_with_protection() -> None:
    assert is_loopback("127.0.0.1:1")
    assert is_loopback("[::1]:1")
    assert not is_loopback("0.0.0.0:1")
    for name in ("listen", "peer_listen"):
        exposed = document()
        exposed["nodes"][0][name] = "0.0.0.0:8101"
        with pytest.raises(ConfigError, match="beyond this machine"):
            parse(exposed, "n1")
        assert parse(exposed, "n2").node.id == "n2"
        exposed["security"] = {"allow_insecure": True}
        assert parse(exposed, "n1").security.allow_insecure
    protected = document(security={"tls_certificate": "c", "tls_key": "k", "tokens_file": "t"})
    protected["nodes"][0]["listen"] = "0.0.0.0:8101"
    assert parse(protected, "n1").security.tls_key == Path("k")


@pytest.mark.parametrize(
    "security",
    [
        {"cluster_secret_file": "s"},
        {"peer_tls_certificate": "c", "peer_tls_key": "k", "peer_tls_ca": "a"},
        {"allow_insecure_peers": True, "allow_insecure_ha": True},
        {"cluster_secret_file": "s", "cluster_secret_optional": True, "allow_insecure": True},
    ],
)
def test_the_ports_between_nodes_are_open_with_a_secret_or_tls(security: dict[str, Any]) -> None:
    exposed = document(security=security)
    exposed["nodes"][0]["peer_listen"] = "0.0.0.0:9101"
    assert parse(exposed, "n1").node.peer_listen == "0.0.0.0:9101"


@pytest.mark.parametrize(
    ("security", "listener"),
    [
        ({}, "peer_listen"),
        ({"cluster_secret_file": "s", "cluster_secret_optional": True}, "peer_listen"),
        ({"allow_insecure_ha": True, "allow_insecure_rest": True}, "peer_listen"),
        ({"allow_insecure_peers": True}, "ha_listen"),
        ({"cluster_secret_file": "s"}, "listen"),
        ({"cluster_secret_file": "s", "allow_insecure_peers": True, "allow_insecure_ha": True}, "listen"),
    ],
)
def test_each_listener_is_allowed_by_itself(security: dict[str, Any], listener: str) -> None:
    exposed = document(security=security)
    for name in ("listen", "peer_listen"):
        exposed["nodes"][0][name] = "0.0.0.0:8101"
    if listener != "listen":
        exposed["security"]["allow_insecure_rest"] = True
    with pytest.raises(ConfigError, match=f"{listener} = '0.0.0.0"):
        parse(exposed, "n1")


@pytest.mark.parametrize(
    ("security", "complaint"),
    [
        ({"peer_tls_certificate": "c", "peer_tls_key": "k"}, "must be set together"),
        (
            {
                "cluster_secret_file": "s",
                "peer_tls_certificate": "c",
                "peer_tls_key": "k",
                "peer_tls_ca": "a",
            },
            "TLS replaces the secret",
        ),
        ({"cluster_secret_optional": True}, "requires cluster_secret_file"),
    ],
)
def test_protection_that_makes_no_sense_is_refused(security: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse(document(security=security), "n1")


def test_with_tls_the_others_are_sent_to_https() -> None:
    plain = document()
    assert parse(plain, "n1").node.url == f"http://{plain['nodes'][0]['listen']}"
    plain["security"] = {"tls_certificate": "c", "tls_key": "k"}
    assert parse(plain, "n1").node.url == f"https://{plain['nodes'][0]['listen']}"


@pytest.mark.parametrize("name", ["tokens_file", "tls_certificate", "tls_key", "tls_ca"])
def test_files_of_security_that_cannot_be_used_are_refused_by_name(name: str, tmp_path: Path) -> None:
    absent, broken = tmp_path / "absent", tmp_path / "broken"
    broken.write_text("")
    for file in (absent, broken):
        pair = {"tls_certificate": file, "tls_key": file}
        given = pair if name in pair else {name: file}
        with pytest.raises(ConfigError, match=f"{name} {file}"):
            check_security(SecuritySettings(**given))


def test_log_lines_are_logfmt_or_json() -> None:
    record = logging.makeLogRecord({"name": "app", "msg": "two\nlines", "levelname": "INFO", "created": 0})
    record.request_id, record.level = "r-1", "not the level"
    assert 'message="two\\nlines"' in LineFormatter().format(record)
    line = LineFormatter(as_json=True).format(record)
    assert "\n" not in line
    expected = {"level": "info", "logger": "app", "message": "two\nlines", "request_id": "r-1"}
    assert json.loads(line).items() >= expected.items()
    settings = parse(document(logging={"format": "json", "level": "debug"}), "n1").logging
    assert (settings.format, settings.level) == ("json", "debug")
    with pytest.raises(ConfigError, match=r"logging\.level"):
        parse(document(logging={"level": "loud"}), "n1")


@pytest.mark.parametrize(("level", "printed"), [("debug", True), ("warning", True), ("error", False)])
def test_the_level_holds_for_warnings_of_asyncio_too(level: str, printed: bool) -> None:
    lines = (
        "import logging",
        "from app.telemetry import configure_logging",
        f"configure_logging({level.upper()!r})",
        "logging.getLogger('asyncio').warning('late')",
    )
    command = [sys.executable, "-c", "; ".join(lines)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ("message=late" in ended.stderr) is printed


@pytest.mark.parametrize("as_json", [False, True])
def test_a_line_cannot_control_a_terminal(as_json: bool) -> None:
    """Text of an unidentified peer is in it, for example."""
    text = "\x1b[2J \x9b2J \x7f \x85 \u2028 \u2029 \u202e \ud800 \U000e0001 ok 😀 é"
    line = LineFormatter(as_json=as_json).format(logging.makeLogRecord({"msg": "m", "reason": text}))
    assert line.isprintable()
    quoted = line[line.index('"\\u001b') :].removesuffix("}")
    assert json.loads(quoted) == text
