"""Certificates and keys that are replaced while a node starts: the refusal states what is wrong with them."""

from pathlib import Path

import pytest

from app.errors import ConfigError
from app.node.links.credentials import load_link_security
from app.settings.model import SecuritySettings
from tests.support.certificates import make_authority, make_certificate, openssl

INCOMPLETE = "PEM files are needed, each of them complete"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes, bytes, bytes]:
    """Certificate, key, authority, and the key of another certificate."""
    authority = make_authority(tmp_path_factory.mktemp("made"))
    certificate, key = make_certificate(authority, "n1", "DNS:n1")
    _, other = make_certificate(authority, "n2", "DNS:n2")
    return tuple(path.read_bytes() for path in (certificate, key, authority, other))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("part", "change", "reason"),
    [
        (0, lambda data: data[: len(data) // 2], INCOMPLETE),
        (0, lambda data: b"", INCOMPLETE),
        (1, lambda data: data[: len(data) // 2], INCOMPLETE),
        (1, lambda data: b"", INCOMPLETE),
        (2, lambda data: data + data[:200], INCOMPLETE),
        (2, lambda data: b"", INCOMPLETE),
        (1, None, "the key is not that of the certificate"),
    ],
)
def test_a_file_that_is_half_written_is_named_with_the_reason(
    tmp_path: Path, made: tuple[bytes, bytes, bytes, bytes], part: int, change: object, reason: str
) -> None:
    names = ("peer_tls_certificate", "peer_tls_key", "peer_tls_ca")
    files = {name: tmp_path / name for name in names}
    for place, (path, data) in enumerate(zip(files.values(), made, strict=False)):
        changed = made[3] if change is None else change(data)  # type: ignore[operator]
        path.touch(mode=0o600)
        path.write_bytes(changed if place == part else data)
    with pytest.raises(ConfigError) as refusal:
        load_link_security(SecuritySettings(**files))
    assert str(files[names[part]]) in str(refusal.value)
    assert reason in str(refusal.value)
    assert "_ssl.c" not in str(refusal.value)


def test_a_key_that_is_too_weak_is_refused_with_the_reason(tmp_path: Path) -> None:
    """Both files are complete: another copy of them would be no better."""
    authority = make_authority(tmp_path)
    certificate, key = tmp_path / "weak.pem", tmp_path / "weak.key"
    weak = ("-newkey", "rsa:512", "-nodes", "-subj", "/CN=n1")
    openssl("req", "-x509", *weak, "-keyout", key, "-out", certificate)
    key.chmod(0o600)
    settings = SecuritySettings(peer_tls_certificate=certificate, peer_tls_key=key, peer_tls_ca=authority)
    with pytest.raises(ConfigError) as refusal:
        load_link_security(settings)
    assert f"peer_tls_key {key}: OpenSSL refuses it: ee key too small" in str(refusal.value)
