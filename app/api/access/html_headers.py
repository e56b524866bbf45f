"""Headers of the HTML pages of a node: no other website may show them in a frame, where a click on it would
be a click on the page, and a browser takes no content for another type."""

from typing import Final

_ALWAYS: Final = "base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"


def html_headers(policy: str = "") -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers of a page. policy: its own directives of the Content-Security-Policy."""
    directives = f"{policy}; {_ALWAYS}" if policy else _ALWAYS
    return (
        (b"content-security-policy", directives.encode("ascii")),
        (b"x-content-type-options", b"nosniff"),
        (b"x-frame-options", b"DENY"),
    )
