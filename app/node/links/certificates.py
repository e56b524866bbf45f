"""Certificates that this node uses: when each of them ends, and warnings before that.

A node starts with a certificate that has ended. Without a valid one for REST it still replicates; without a
valid one for other nodes it still answers what it can alone; and its clock may be what is wrong.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.certificate_end import CertificateEnd
from app.settings.model import SecuritySettings

logger = logging.getLogger(__name__)

_DAY_S: Final = 86_400.0
_OWN: Final = ("tls_certificate", "peer_tls_certificate")
_AUTHORITIES: Final = ("tls_ca", "peer_tls_ca")


@dataclass(frozen=True)
class Certificate:
    """One file of certificates. setting: key of [security] that names it. end_ms: time since 1970 UTC from
    which it is not valid. begin_ms: before that it is not valid either."""

    setting: str
    path: Path
    end_ms: int
    begin_ms: int = 0


def load_certificates(security: SecuritySettings) -> tuple[Certificate, ...]:
    """Read the files that [security] names. One whose end cannot be read is left out, with a warning: TLS
    itself decides whether it can be used."""
    found = []
    for setting in (*_OWN, *_AUTHORITIES):
        path: Path | None = getattr(security, setting)
        if path is None:
            continue
        try:
            begins, ends = zip(*spans_of(path.read_bytes()), strict=True)
        except (OSError, ValueError) as error:
            logger.warning("the end of %s %s is not known: %s", setting, path, error)
            continue
        # Of a chain all must be valid; of authorities one suffices.
        if setting in _OWN:
            found.append(Certificate(setting, path, min(ends), max(begins)))
        else:
            found.append(Certificate(setting, path, max(ends), min(begins)))
    return tuple(found)


async def warn_before_the_end(certificates: tuple[Certificate, ...], now_ms: Callable[[], int]) -> None:
    """Log, now and once a day, each certificate that ends soon or has ended."""
    while certificates:
        for certificate in certificates:
            _warn(certificate, CertificateEnd(certificate.end_ms, now_ms(), certificate.begin_ms))
        await asyncio.sleep(_DAY_S)


def _warn(certificate: Certificate, end: CertificateEnd) -> None:
    if end.is_reported:
        level = logging.ERROR if end.is_refused else logging.WARNING
        logger.log(level, "%s %s %s: %s", certificate.setting, certificate.path, end, end.advice)


def spans_of(pem: bytes) -> list[tuple[int, int]]:
    """Return the begin and the end of each certificate in a PEM file, in milliseconds. Raises ValueError,
    also for none."""
    from cryptography import x509  # some MiB that a node without certificates saves

    certificates = x509.load_pem_x509_certificates(pem)
    return [
        (int(each.not_valid_before_utc.timestamp()) * 1000, int(each.not_valid_after_utc.timestamp()) * 1000)
        for each in certificates
    ]


def host_names(pem: bytes) -> tuple[str, ...]:
    """Return the hosts that the first certificate of a PEM file names, as its subjectAltName has them:
    `DNS:n1.example`, `IP:127.0.0.1`. Raises ValueError."""
    from cryptography import x509

    extensions = x509.load_pem_x509_certificates(pem)[0].extensions
    try:
        found = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    names, addresses = found.get_values_for_type(x509.DNSName), found.get_values_for_type(x509.IPAddress)
    return (*(f"DNS:{name}" for name in names), *(f"IP:{address}" for address in addresses))


def names_host(names: Sequence[str], host: str) -> bool:
    """Return whether a client that calls `host` accepts a certificate with these names (RFC 9525), as OpenSSL
    does: an address only as an address. A name may begin with `*`, before two labels at least."""
    try:
        return f"IP:{ipaddress.ip_address(host)}" in names
    except ValueError:
        parent = host.lower().partition(".")[2]
        wanted = (f"dns:{host.lower()}", f"dns:*.{parent}" if "." in parent else "")
        return any(name.lower() in wanted for name in names)
