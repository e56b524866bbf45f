"""Checks of what a node needs to start, by its configuration: `commitlog doctor --config`."""

import errno
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

from app.api.access.tokens import Tokens
from app.certificate_end import CertificateEnd
from app.errors import ConfigError
from app.node.links.certificates import Certificate, host_names, load_certificates, names_host
from app.serve import check_security
from app.settings.addresses import split_address
from app.settings.file import load
from app.settings.model import NodeSettings, Settings
from app.setup.checks import Check, State, check_disk


def check_node(config: Path, node: str) -> list[Check]:
    """Check a configuration file for a node, the files that it names, its addresses and its data folder."""
    try:
        settings = load(config, node)
        check_security(settings.security)
        Tokens.load(settings.security.tokens_file)  # which warns
    except ConfigError as error:
        return [
            Check("configuration", State.MISSING, str(error), f"correct {config} (docs/configuration.md)")
        ]
    certificates = load_certificates(settings.security)
    return [
        Check("configuration", State.OK, f"{config}, {node}"),
        *map(_check_certificate, certificates),
        *_check_host(settings),
        _check_addresses(settings.node),
        check_disk(settings.node.data.absolute()),
    ]


def _check_addresses(node: NodeSettings) -> Check:
    """Check that the node can listen. An address in use is a warning: the node itself may run."""
    used: list[str] = []
    settings: dict[str, str] = {}  # by address
    for setting in ("listen", "peer_listen", "ha_listen"):
        address: str = getattr(node, setting)
        try:
            _listen(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                remedy = f"correct `{setting}` of {node.id}: an address and a port of this machine"
                return Check("ports", State.MISSING, f"{setting} {address}: {error.strerror}", remedy)
            used.append(f"{setting} {address}")
        if address.endswith(":0"):
            continue  # any port that is free
        if (other := settings.setdefault(address, setting)) != setting:
            text = f"{setting} {address}: `{other}` has the same address"
            return Check("ports", State.MISSING, text, f"set another port for one of them of {node.id}")
    if used:
        advice = f"stop the process that uses it, unless it is {node.id}"
        return Check("ports", State.WARNING, f"in use: {', '.join(used)}", advice)
    return Check("ports", State.OK, f"{', '.join(settings)} are free")


def _listen(address: str) -> None:
    """Bind the address for a moment. Raises OSError."""
    found = socket.getaddrinfo(*split_address(address), type=socket.SOCK_STREAM)
    family, kind, protocol, _, place = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(place)


def _check_certificate(certificate: Certificate) -> Check:
    end = CertificateEnd(certificate.end_ms, time.time_ns() // 1_000_000, certificate.begin_ms)
    text = f"{certificate.path} {end}"
    if end.is_reported:
        state = State.MISSING if end.is_refused else State.WARNING
        return Check(certificate.setting, state, text, end.advice)
    return Check(certificate.setting, State.OK, text)


def _check_host(settings: Settings) -> list[Check]:
    """Compare the host of the node's URL with its certificate: clients and the other nodes refuse another
    one. A warning: the certificate that they see may be that of a proxy."""
    path, node = settings.security.tls_certificate, settings.node
    url = urlsplit(node.url)
    if path is None or url.hostname is None or url.scheme != "https":
        return []
    try:
        names = host_names(path.read_bytes())
    except (OSError, ValueError):  # as load_certificates has reported
        return []
    of_listen = " (from `listen`)" if url.netloc == node.listen else ""
    text = f"{path} names {', '.join(names) or 'no host'}; `url` of {node.id}{of_listen} is {node.url}"
    if names_host(names, url.hostname):
        return [Check("tls_certificate host", State.OK, text)]
    remedy = (
        f"set `url` of {node.id} to a host that the certificate names, or make a certificate that names "
        f"{url.hostname} (subjectAltName; docs/operations.md, section 2)"
    )
    return [Check("tls_certificate host", State.WARNING, text, remedy)]
