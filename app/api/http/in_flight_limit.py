"""Limit of concurrent requests and their bytes at this node: overload is refused early, never buffered
(docs/design.md)."""

from app.errors import RateLimited


class InFlightLimit:
    """Counts requests and the bytes of their bodies. One `leave` reverses an `enter` and its `grow`s."""

    __slots__ = ("_max_bytes", "_max_requests", "bytes", "requests")

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self.requests = 0
        self.bytes = 0

    def enter(self, size_bytes: int) -> None:
        """A request begins; size_bytes: declared size of its body. Raises RateLimited: it has not entered."""
        if self.requests >= self._max_requests:
            raise RateLimited(
                f"{self.requests} requests are in flight, this node accepts at most {self._max_requests}"
            )
        self.grow(size_bytes)
        self.requests += 1

    def grow(self, size_bytes: int, held_bytes: int = 0) -> None:
        """A request needs more bytes than the held_bytes that it has. Raises RateLimited.

        A single request always fits, because it would be refused at each attempt: other limits bound it.
        """
        if self.bytes > held_bytes and self.bytes + size_bytes > self._max_bytes:
            raise RateLimited(
                f"{self.bytes} bytes of requests are in flight, this node accepts at most {self._max_bytes}"
            )
        self.bytes += size_bytes

    def leave(self, size_bytes: int, requests: int = 1) -> None:
        """Requests have been answered; size_bytes: all that they entered and grew by."""
        self.requests -= requests
        self.bytes -= size_bytes

    def reservation(self) -> "Reservation":
        """Reservation of one request for its answer."""
        return Reservation(self)


class Reservation:
    """Bytes that one request holds until it has been answered."""

    __slots__ = ("_limit", "bytes")

    def __init__(self, limit: InFlightLimit) -> None:
        self._limit = limit
        self.bytes = 0

    def reach(self, size_bytes: int) -> None:
        """Reserve at least this number of bytes from now on. Raises RateLimited: the old reservation
        stays."""
        if size_bytes > self.bytes:
            self.hold(size_bytes)

    def hold(self, size_bytes: int) -> None:
        """Reserve this number of bytes from now on. Raises RateLimited: the old reservation stays."""
        if size_bytes > self.bytes:
            self._limit.grow(size_bytes - self.bytes, self.bytes)
        else:
            self._limit.leave(self.bytes - size_bytes, requests=0)
        self.bytes = size_bytes
