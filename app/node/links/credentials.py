"""Cluster secrets and certificates of the connections between nodes, read from their files at the start."""

import contextlib
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from app.errors import ConfigError
from app.settings.model import SecuritySettings
from app.settings.private_files import check_private

SECRET_MIN_BYTES: Final = 16
SECRET_MAX_BYTES: Final = 1_024
_NOT_PEM: Final = "PEM files are needed, each of them complete, and a key without a passphrase"
SECRETS_MAX: Final = 2  # the secret that this node uses, and the one before or after it


class Mode(StrEnum):
    """Credentials of the connections between nodes."""

    PLAIN = "plain"
    OPTIONAL_SECRET = "optional_secret"  # both kinds of nodes are reached, while a secret is introduced
    SECRET = "secret"
    TLS = "tls"


@dataclass(frozen=True, kw_only=True)
class LinkSecurity:
    """Credentials of this node for its connections to other nodes.

    secrets: the first one is used to dial, all are accepted. accept_tls, dial_tls: contexts of each side,
    both or neither. host_of(node id): host of that node's peer_address; None for a node that is not known.
    """

    mode: Mode = Mode.PLAIN
    secrets: tuple[bytes, ...] = ()
    accept_tls: ssl.SSLContext | None = None
    dial_tls: ssl.SSLContext | None = None
    host_of: Callable[[str], str | None] = lambda _: None


def load_link_security(
    security: SecuritySettings, host_of: Callable[[str], str | None] = lambda _: None
) -> LinkSecurity:
    """Read the files that [security] names. Raises ConfigError."""
    if security.cluster_secret_file is not None:
        mode = Mode.OPTIONAL_SECRET if security.cluster_secret_optional else Mode.SECRET
        return LinkSecurity(mode=mode, secrets=read_secrets(security.cluster_secret_file), host_of=host_of)
    certificate, key, authority = (
        security.peer_tls_certificate,
        security.peer_tls_key,
        security.peer_tls_ca,
    )
    if certificate is None or key is None or authority is None:
        return LinkSecurity(host_of=host_of)
    return LinkSecurity(
        mode=Mode.TLS,
        accept_tls=_context(ssl.PROTOCOL_TLS_SERVER, certificate, key, authority),
        dial_tls=_context(ssl.PROTOCOL_TLS_CLIENT, certificate, key, authority),
        host_of=host_of,
    )


def read_secrets(path: Path) -> tuple[bytes, ...]:
    """Return the secrets of a file, one a line; empty lines and lines that begin with `#` are not secrets.

    Raises ConfigError for a file that other users can read, and for a secret that is too short.
    """
    name = f"[security] cluster_secret_file {path}"
    with readable(f"cluster_secret_file {path}"), path.open("rb") as file:
        check_private("cluster_secret_file", path)
        data = file.read(SECRETS_MAX * SECRET_MAX_BYTES * 4)
    secrets = tuple(
        line for line in map(bytes.strip, data.splitlines()) if line and not line.startswith(b"#")
    )
    if not 0 < len(secrets) <= SECRETS_MAX:
        raise ConfigError(f"{name} must contain 1 or {SECRETS_MAX} secrets, one a line, got {len(secrets)}")
    for number, secret in enumerate(secrets, 1):
        if not SECRET_MIN_BYTES <= len(secret) <= SECRET_MAX_BYTES:
            raise ConfigError(
                f"{name}: a secret must have {SECRET_MIN_BYTES} to {SECRET_MAX_BYTES} bytes, "
                f"secret {number} has {len(secret)}"
            )
    return secrets


def _context(side: int, certificate: Path, key: Path, authority: Path) -> ssl.SSLContext:
    """Both sides show a certificate of the authority; the names are compared after the handshake of links."""
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if side == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # every connection shows its certificate
    with readable(f"peer_tls_certificate {certificate} and peer_tls_key {key}"):
        context.load_cert_chain(certificate, key, password="")
        check_private("peer_tls_key", key)
    with readable(f"peer_tls_ca {authority}"):
        context.load_verify_locations(authority)
    return context


@contextlib.contextmanager
def readable(what: str) -> Iterator[None]:
    """Raise ConfigError, with the names of the settings, for files that cannot be loaded in the block."""
    try:
        yield
    except ssl.SSLError as error:
        raise ConfigError(f"[security] {what}: {_reason(error)}") from error
    except OSError as error:
        raise ConfigError(f"[security] {what}: {error.strerror or error}") from error


def _reason(error: ssl.SSLError) -> str:
    """Return what is wrong with a certificate or key. A complete one may be refused, too, such as an RSA key
    of 1 024 bits: OpenSSL names the reason then."""
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key is not that of the certificate"
    if error.reason in (None, "NO_CERTIFICATE_OR_CRL_FOUND") or error.library == "PEM":
        return _NOT_PEM
    return f"OpenSSL refuses it: {error.reason.lower().replace('_', ' ')}"
