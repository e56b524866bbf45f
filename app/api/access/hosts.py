"""Names of a node in the header Host, where no token protects it.

A page of a foreign website may let its own name lead to 127.0.0.1. For the browser the page and the node then
have one origin, so the page may read and change everything that needs no token. Its requests have its own
name as Host: a registered name, which has a dot and is not one of the names of the cluster.
"""

import ipaddress
from urllib.parse import urlsplit

from app.settings.addresses import is_loopback, split_address
from app.settings.model import Settings


class KnownHosts:
    """Names under which a node answers: addresses, names without a dot, and names of nodes."""

    def __init__(self, names: frozenset[str]) -> None:
        """names: in lower case, without a port."""
        self._names = names

    @classmethod
    def of(cls, settings: Settings) -> "KnownHosts | None":
        """Return the names of a node that is reached from its machine only and needs no token; None for any
        other one, which answers under every name."""
        security, node = settings.security, settings.node
        insecure = security.allow_insecure or security.allow_insecure_rest
        if security.tokens_file is not None or insecure or not is_loopback(node.listen):
            return None
        urls = (urlsplit(each.url).hostname for each in settings.nodes)
        return cls(frozenset((*filter(None, urls), split_address(node.listen)[0].lower())))

    def have(self, host: bytes) -> bool:
        """Return whether a Host header may name this node."""
        text = host.decode("latin-1").lower()
        if text.startswith("["):
            return True
        name = text.partition(":")[0].removesuffix(".")
        return "." not in name or name.endswith(".localhost") or name in self._names or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
