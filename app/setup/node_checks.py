"""Checks of the files with which a node starts: `commitlog doctor --config`."""

import time
from pathlib import Path

from app.errors import ConfigError
from app.node.links.certificates import WARNING_DAYS, Certificate, load_certificates
from app.serve import check_security
from app.settings.file import load
from app.setup.checks import Check, State

REPLACE = "replace it (docs/operations.md, section 2)"


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
    now_ms = time.time_ns() // 1_000_000
    is_over = certificate.end_ms <= now_ms
    text = f"{certificate.path} {'ended' if is_over else 'ends'} at {certificate.end}"
    if is_over:
        return Check(certificate.setting, State.MISSING, text, REPLACE)
    if certificate.days_left(now_ms) <= WARNING_DAYS:
        return Check(certificate.setting, State.WARNING, text, REPLACE)
    return Check(certificate.setting, State.OK, text)
