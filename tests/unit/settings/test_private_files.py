"""Permissions with which a private key or a secret is accepted."""

from pathlib import Path

import pytest

from app.errors import ConfigError
from app.serve import check_security
from app.settings.model import SecuritySettings
from app.settings.private_files import check_private, objection
from tests.support.certificates import make_authority, make_certificate

ROOT, USER = 0, 10_001


@pytest.mark.parametrize(("owner", "mode"), [(USER, 0o600), (USER, 0o400), (ROOT, 0o440), (ROOT, 0o640)])
def test_private_files_are_accepted(owner: int, mode: int) -> None:
    assert objection(mode, owner) is None


@pytest.mark.parametrize(
    ("owner", "mode"),
    [(USER, 0o640), (USER, 0o440), (USER, 0o644), (USER, 0o620), (ROOT, 0o644), (ROOT, 0o660), (ROOT, 0o601)],
)
def test_files_that_other_users_can_use_are_refused(owner: int, mode: int) -> None:
    reason = objection(mode, owner)
    assert reason is not None
    assert reason.startswith(f"has the permissions {mode:04o}")


def test_the_refusal_names_the_file_and_the_command(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.touch()
    file.chmod(0o644)
    with pytest.raises(ConfigError, match=rf"tls_key {file} has .* 0644.*: use `chmod 600 {file}`$"):
        check_private("tls_key", file)


@pytest.mark.parametrize("kind", ["", "peer_"])
def test_a_node_does_not_start_with_a_key_that_others_can_read(tmp_path: Path, kind: str) -> None:
    authority = make_authority(tmp_path)
    certificate, key = make_certificate(authority, "node", "DNS:n1")
    given = {f"{kind}tls_certificate": certificate, f"{kind}tls_key": key, f"{kind}tls_ca": authority}
    security = SecuritySettings(**given)  # type: ignore[arg-type]
    check_security(security)
    key.chmod(0o644)
    with pytest.raises(ConfigError, match=f"{kind}tls_key {key} has the permissions 0644"):
        check_security(security)
