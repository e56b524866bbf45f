"""Checks of the files with which a node starts: `commitlog doctor --config`."""

import time
from pathlib import Path

from app.certificate_end import REPLACE, CertificateEnd
from app.errors import ConfigError
from app.node.links.certificates import Certificate, load_certificates
from app.serve import check_security
from app.settings.file import load
from app.setup.checks import Check, State


def check_node(config: Path, node: str) -> list[Check]:
    """Check a configuration file for a node, and the files that it names."""
    try:
        settings = load(config, node)
        check_security(settings.security)
    except ConfigError as error:
        return [
            Check("configuration", State.MISSING, str(error), f"correct {config} (docs/configuration.md)")
        ]
    certificates = load_certificates(settings.security)
    return [Check("configuration", State.OK, f"{config}, {node}"), *map(_check_certificate, certificates)]


def _check_certificate(certificate: Certificate) -> Check:
    end = CertificateEnd(certificate.end_ms, time.time_ns() // 1_000_000)
    text = f"{certificate.path} {end}"
    if end.is_reported:
        state = State.MISSING if end.is_over else State.WARNING
        return Check(certificate.setting, state, text, REPLACE)
    return Check(certificate.setting, State.OK, text)
