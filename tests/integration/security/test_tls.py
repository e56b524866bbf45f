"""TLS and tokens on three nodes: what a node sends on for its client is protected too."""

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.client import CommitlogClient, Record
from app.client.errors import Untrusted
from app.client.operations import Operations
from tests.support.cluster import Cluster, serving

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


def test_the_client_trusts_a_private_authority_only_when_told(
    guarded: GuardedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [guarded.url(node) for node in guarded.ids]
    with (
        CommitlogClient(urls, token=TOKEN) as client,
        pytest.raises(Untrusted, match="SSL_CERT_FILE") as refused,
    ):
        client.append([Record("never sent")])
    assert refused.value.outcome == "not_applied"
    monkeypatch.setenv("SSL_CERT_FILE", str(guarded.authority))
    with CommitlogClient(urls, token=TOKEN) as client:
        appended = client.append([Record("sent")])
        assert client.read(from_index=appended.first_index).records[0]["value"] == "sent"
        assert Operations(client).verify()["equal"]
