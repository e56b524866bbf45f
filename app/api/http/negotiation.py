"""Accept: selection of the content type that the client prefers (RFC 9110, section 12.5.1)."""

from collections.abc import Sequence
from typing import Final

from app.api.http.messages import RawHeaders
from app.errors import NotAcceptable

_SHOWN_CHARACTERS: Final = 80


def accepted_type(headers: RawHeaders, offers: Sequence[str]) -> str:
    """Return the offer that the client prefers, the first one without a preference. Raises NotAcceptable.

    headers: with lower-case names; `Accept` may have several lines (RFC 9110, section 5.3). offers:
    lower-case media types, the default first.
    """
    accept = ",".join(value.decode("latin-1") for name, value in headers if name == b"accept")
    if not accept.strip():
        return offers[0]
    ranges = [_range(part) for part in accept.split(",") if part.strip()]
    best: str | None = None
    best_quality = 0.0
    for offer in offers:
        quality = _quality(offer, ranges)
        if quality > best_quality:
            best, best_quality = offer, quality
    if best is None:
        raise NotAcceptable(
            f"Accept must include one of {', '.join(offers)}, got {accept[:_SHOWN_CHARACTERS]!r}"
        )
    return best


def _range(part: str) -> tuple[str, float]:
    name, *parameters = part.split(";")
    quality = 1.0
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip().lower() == "q":
            try:
                quality = min(1.0, max(0.0, float(value)))
            except ValueError:
                quality = 0.0
    return name.strip().lower(), quality


def _quality(offer: str, ranges: Sequence[tuple[str, float]]) -> float:
    """Return the quality of the most specific range that matches the offer; 0 for none."""
    family = offer.partition("/")[0] + "/*"
    for wanted in (offer, family, "*/*"):
        found = [quality for name, quality in ranges if name == wanted]
        if found:
            return max(found)
    return 0.0
