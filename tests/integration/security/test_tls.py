"""TLS and tokens on three nodes: what a node sends on for its client is protected too."""

import json
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.client import CommitlogClient, Record
from app.client.errors import NoAnswer, Untrusted
from app.client.operations import Operations
from tests.support.cluster import Cluster, eventually, serving

TOKEN = "secret"
_EC = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


def make_certificates(folder: Path) -> dict[str, Path]:
    """An authority and a certificate for 127.0.0.1, as [security] names them; by the command openssl."""
    files = {name: folder / name for name in ("tls_ca", "tls_certificate", "tls_key")}
    authority = ["-CA", files["tls_ca"], "-CAkey", folder / "ca.key", "-CAcreateserial"]
    request, more = folder / "request", folder / "more"
    more.write_text("subjectAltName=IP:127.0.0.1\n")
    for command in (
        ["req", "-x509", *_EC, "-keyout", folder / "ca.key", "-out", files["tls_ca"], "-subj", "/CN=ca"],
        ["req", *_EC, "-keyout", files["tls_key"], "-out", request, "-subj", "/CN=node"],
        [
            "x509",
            "-req",
            "-in",
            request,
            *authority,
            "-extfile",
            more,
            "-out",
            files["tls_certificate"],
        ],
    ):
        subprocess.run(["openssl", *map(str, command)], check=True, capture_output=True)
    return files


class GuardedCluster(Cluster):
    """Its nodes take TLS and a token."""

    def __init__(self, folder: Path) -> None:
        files = make_certificates(folder)
        self.authority = files["tls_ca"]
        tokens = folder / "tokens"
        tokens.write_text(f"{TOKEN}\n")
        super().__init__(folder, sections={"security": {**files, "tokens_file": tokens}})
        self._client = httpx.Client(
            timeout=30.0,
            verify=ssl.create_default_context(cafile=self.authority),
            headers={"Authorization": f"Bearer {TOKEN}"},
        )

    def url(self, node: str) -> str:
        return super().url(node).replace("http://", "https://")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedCluster]:
    with serving(GuardedCluster(tmp_path_factory.mktemp("tls"))) as cluster:
        yield cluster


def test_calls_find_their_way_between_the_nodes(guarded: GuardedCluster) -> None:
    leader, follower = guarded.leader(), guarded.follower()
    forwarded = guarded.append(follower, "by another node")
    assert forwarded.status_code == 200
    assert forwarded.headers["commitlog-leader"] == guarded.url(leader)
    assert guarded.get(follower, "/v1/logs/default/watermarks").status_code == 200
    read = guarded.get(follower, "/v1/logs/default/records").json()
    assert [record["value"] for record in read["records"]] == ["by another node"]


def test_one_node_records_what_another_forwarded(guarded: GuardedCluster) -> None:
    """The caller's token reaches the leader. Entries of all nodes reach the log, each once."""
    leader = guarded.leader()
    for node in guarded.ids:
        for path, body in (("/v1/logs/default:trim", {"until_index": 0}), ("/v1/logs", {"name": "made"})):
            headers = {"X-Request-Id": f"{node}{path[-4:]}"}
            done = guarded.call("POST", node, path, json=body, headers=headers)
            assert done.status_code in (200, 201), done.text

    def entries() -> list[dict[str, Any]]:
        read = guarded.get(guarded.follower(), "/v1/logs/__audit/records")
        found = [json.loads(record["value"]) for record in read.json().get("records", ())]
        return found if len(found) >= 6 else []

    found = eventually(entries, what="all entries")
    assert sorted((entry["request_id"], entry["node"]) for entry in found) == sorted(
        [(f"{node}trim", leader) for node in guarded.ids] + [(f"{node}logs", node) for node in guarded.ids]
    )
    assert {entry["caller"] for entry in found} == {"token-2bb80d53"}
    assert {entry["outcome"] for entry in found} == {"done"}


def test_the_client_trusts_a_private_authority_only_when_configured(
    guarded: GuardedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [guarded.url(node) for node in guarded.ids]
    with (
        CommitlogClient(urls, token=TOKEN) as client,
        pytest.raises(Untrusted, match="SSL_CERT_FILE") as refused,
    ):
        client.append([Record("never sent")])
    assert refused.value.outcome == "not_applied"
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such/ca.pem")
    with (
        CommitlogClient(urls, token=TOKEN) as client,
        pytest.raises(Untrusted, match="which is not a file"),
    ):
        client.tail()
    monkeypatch.setenv("SSL_CERT_FILE", str(guarded.authority))
    with CommitlogClient(urls, token=TOKEN) as client:
        appended = client.append([Record("sent")])
        assert client.read(from_index=appended.first_index).records[0]["value"] == "sent"
        assert Operations(client).verify()["equal"]
    other_name = guarded.url("n1").replace("127.0.0.1", "localhost")
    with (
        CommitlogClient(other_name, token=TOKEN) as client,
        pytest.raises(Untrusted, match="needs a name or an address that is in the certificate"),
    ):
        client.append([Record("never sent")])


def test_a_url_without_tls_for_a_node_with_it_is_named(guarded: GuardedCluster) -> None:
    plain = guarded.url("n1").replace("https:", "http:")
    with (
        CommitlogClient(plain, token=TOKEN, give_up_s=0) as client,
        pytest.raises(NoAnswer, match=f"if it uses TLS, its URL is {guarded.url('n1')}"),
    ):
        client.read()
