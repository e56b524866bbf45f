"""Bound for the connections that have not proved anything. PURE.

At the bound the oldest connection is closed and the new one is accepted: a node needs a few milliseconds to
prove itself, so connections that only wait cannot keep it out. The connection that is closed is one of the
address with the most connections, so a flood from one address does not displace the others.
"""

from typing import Final, Generic, TypeVar

AnyConnection = TypeVar("AnyConnection")

HANDSHAKES_MAX: Final = 256
OF_AN_ADDRESS_SHARE: Final = 4  # one address may have a fourth of them
OF_AN_ADDRESS_MIN: Final = 8


class HandshakesInProgress(Generic[AnyConnection]):
    """Connections whose other side is unidentified, oldest first, by their address."""

    def __init__(self, size: int = HANDSHAKES_MAX) -> None:
        """size: connections at once, at least 1."""
        self.size = max(1, size)
        self.size_of_address = min(self.size, max(OF_AN_ADDRESS_MIN, self.size // OF_AN_ADDRESS_SHARE))
        self._address_of: dict[AnyConnection, str] = {}
        self._by_address: dict[str, dict[AnyConnection, None]] = {}

    def __len__(self) -> int:
        return len(self._address_of)

    def enter(self, connection: AnyConnection, address: str) -> AnyConnection | None:
        """Add a connection; return the one that is removed for it, which must be closed."""
        victim = None
        if len(self._by_address.get(address, ())) >= self.size_of_address:
            victim = next(iter(self._by_address[address]))
        elif len(self._address_of) >= self.size:
            fullest = max(self._by_address, key=lambda held: len(self._by_address[held]))
            victim = next(iter(self._by_address[fullest]))
        if victim is not None:
            self.leave(victim)
        self._address_of[connection] = address
        self._by_address.setdefault(address, {})[connection] = None
        return victim

    def leave(self, connection: AnyConnection) -> None:
        """Remove a connection that has proved itself, or has ended; no effect if it was removed before."""
        address = self._address_of.pop(connection, None)
        if address is None:
            return
        others = self._by_address[address]
        del others[connection]
        if not others:
            del self._by_address[address]

    def clear(self) -> list[AnyConnection]:
        """Remove all connections; return them."""
        connections = list(self._address_of)
        self._address_of.clear()
        self._by_address.clear()
        return connections
