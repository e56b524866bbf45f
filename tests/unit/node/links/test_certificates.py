"""The end of the certificates that a node uses: read, reported, and warned about in time."""

import asyncio
import json
import logging
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from app.cli.main import cli
from app.log.state import DAY_MS
from app.node.links.certificates import (
    Certificate,
    load_certificates,
    names_host,
    spans_of,
    warn_before_the_end,
)
from app.settings.file import parse
from app.settings.model import SecuritySettings
from app.setup.checks import Check, State
from app.setup.node_checks import _check_host
from tests.support.certificates import make_authority, make_certificate
from tests.support.in_process import node_in_process


def end_by_openssl(certificate: Path) -> int:
    command = ["openssl", "x509", "-noout", "-enddate", "-in", str(certificate)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    end = datetime.strptime(text.removeprefix("notAfter="), "%b %d %H:%M:%S %Y GMT").replace(tzinfo=UTC)
    return int(end.timestamp()) * 1000


@pytest.mark.parametrize("days", [30, -1, 36_500], ids=["UTCTime", "ended", "GeneralizedTime"])
def test_the_end_is_that_of_openssl(tmp_path: Path, days: int) -> None:
    certificate, _ = make_certificate(make_authority(tmp_path), "node", "DNS:n1", days=days)
    ((begin_ms, end_ms),) = spans_of(certificate.read_bytes())
    assert end_ms == end_by_openssl(certificate)
    assert 0 < begin_ms <= time.time_ns() // 1_000_000


def test_the_first_end_of_a_chain_and_the_last_end_of_authorities_count(tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    soon, key = make_certificate(authority, "soon", "DNS:n1", days=10)
    late, _ = make_certificate(authority, "late", "DNS:n1", days=20)
    both = tmp_path / "both.pem"
    both.write_text("# a text of Łódź\n" + soon.read_text() + late.read_text())
    found = load_certificates(SecuritySettings(tls_certificate=both, tls_key=key, tls_ca=both))
    assert [(each.setting, each.end_ms) for each in found] == [
        ("tls_certificate", end_by_openssl(soon)),
        ("tls_ca", end_by_openssl(late)),
    ]


def test_a_certificate_that_cannot_be_read_does_not_stop_the_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = make_authority(tmp_path)
    lines = authority.read_text().splitlines()
    authority.write_text("\n".join((lines[0], "MAA=", lines[-1])))
    assert load_certificates(SecuritySettings(tls_ca=authority)) == ()
    assert f"the end of tls_ca {authority} is not known" in caplog.text


@pytest.mark.parametrize(
    ("days", "level", "text"),
    [
        (40, None, ""),
        (
            29,
            logging.WARNING,
            "tls_certificate node.pem ends at 1970-01-31T00:00:00Z, in 29 days: replace it (docs",
        ),
        (
            0,
            logging.ERROR,
            "tls_certificate node.pem ended at 1970-01-02T00:00:00Z, connections with it are refused",
        ),
    ],
)
def test_a_node_warns_each_day_from_thirty_days_before(
    days: int, level: int | None, text: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    certificate = Certificate("tls_certificate", Path("node.pem"), (days + 1) * DAY_MS)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise asyncio.CancelledError

    monkeypatch.setattr("app.node.links.certificates.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(warn_before_the_end((certificate,), lambda: DAY_MS))
    found = [record for record in caplog.records if record.name == "app.node.links.certificates"]
    assert [record.levelno for record in found] == ([level, level] if level else [])
    assert all(record.getMessage().startswith(text) for record in found)
    assert slept == [86_400, 86_400]


def test_metrics_and_status_have_the_end(tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    certificate, key = make_certificate(authority, "node", "DNS:n1", days=7)
    end_ms = end_by_openssl(certificate)

    async def answers() -> tuple[str, dict[str, object]]:
        files = {"tls_certificate": str(certificate), "tls_key": str(key)}
        async with node_in_process(tmp_path, security=files) as node:
            metrics = (await node.client.get("/metrics")).text
            return metrics, (await node.client.get("/v1/logs/default/status")).json()

    metrics, status = asyncio.run(answers())
    assert status["certificates"] == [{"name": "tls_certificate", "end_ms": end_ms}]
    line = next(line for line in metrics.splitlines() if line.startswith("commitlog_certificate_end"))
    name, value = line.split(" ")
    assert name == 'commitlog_certificate_end_timestamp_seconds{certificate="tls_certificate"}'
    assert float(value) * 1000 == end_ms


@pytest.mark.parametrize(("days", "state"), [(90, "ok"), (7, "warning"), (-1, "missing")])
def test_doctor_checks_the_files_of_a_node(tmp_path: Path, days: int, state: str) -> None:
    certificate, key = make_certificate(make_authority(tmp_path), "node", "DNS:n1", days=days)
    config = tmp_path / "cluster.toml"
    config.write_text(
        '[cluster]\nid = "c"\n[[nodes]]\nid = "n1"\nlisten = "127.0.0.1:1"\npeer_listen = "127.0.0.1:2"\n'
        f'data = "d"\n[security]\ntls_certificate = "{certificate}"\ntls_key = "{key}"\n'
    )

    def found() -> dict[str, str]:
        result = CliRunner().invoke(cli, ["doctor", "--json", "--config", str(config)])
        return {check["name"]: check["state"] for check in json.loads(result.stdout)["checks"]}

    assert (found()["configuration"], found()["tls_certificate"]) == ("ok", state)
    key.chmod(0o644)
    assert found()["configuration"] == "missing"


def test_a_client_accepts_a_host_that_the_certificate_names() -> None:
    names = (
        "DNS:n1",
        "DNS:N1.example",
        "DNS:*.example.org",
        "DNS:*.internal",
        "DNS:10.0.0.1",
        "IP:127.0.0.1",
        "IP:::1",
    )
    for host in ("n1", "n1.EXAMPLE", "a.example.org", "127.0.0.1", "0:0::1"):
        assert names_host(names, host), host
    for host in ("n2", "example.org", "a.b.example.org", "127.0.0.2", "1.example"):
        assert not names_host(names, host), host
    for host in ("n1.internal", "10.0.0.1"):  # OpenSSL refuses both
        assert not names_host(names, host), host
    assert not names_host((), "n1")


def test_doctor_compares_the_certificate_with_the_host_of_the_url(tmp_path: Path) -> None:
    """Clients and the other nodes refuse the node otherwise, and its own checks were all well."""
    names = "DNS:n1.example,IP:127.0.0.1"
    certificate, key = make_certificate(make_authority(tmp_path), "node", names, days=90)
    security = {"tls_certificate": str(certificate), "tls_key": str(key), "allow_insecure": True}
    node = {"id": "n1", "peer_listen": "127.0.0.1:2", "data": "d", "listen": "127.0.0.1:1"}

    def found(**changes: str) -> list[Check]:
        nodes = [{**node, **changes}]
        return _check_host(parse({"cluster": {"id": "c"}, "nodes": nodes, "security": security}, "n1"))

    for changes in ({}, {"listen": "0.0.0.0:1", "url": "https://n1.example:1"}):
        assert [check.state for check in found(**changes)] == [State.OK]
    assert found(url="http://n2.example") == []  # that of a proxy, which speaks TLS with the node
    (by_url,) = found(url="https://n2.example:1")
    assert by_url.detail == (
        f"{certificate} names DNS:n1.example, IP:127.0.0.1; `url` of n1 is https://n2.example:1"
    )
    (by_listen,) = found(listen="0.0.0.0:1")
    assert by_listen.detail.endswith("; `url` of n1 (from `listen`) is https://0.0.0.0:1")
    for check, host in ((by_url, "n2.example"), (by_listen, "0.0.0.0")):
        assert check.state is State.WARNING
        assert check.remedy.startswith("set `url` of n1 to a host that the certificate names, or make a")
        assert f"certificate that names {host} (subjectAltName" in check.remedy
