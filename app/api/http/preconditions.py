"""`If-Match`: the version of a resource that a change requires (RFC 9110, section 13.1.1)."""

from typing import Final

NEVER: Final = -2  # a version that no resource has
_DIGITS_MAX: Final = 18


def wanted_version(if_match: str, current: int | None) -> int | None:
    """Return the version that the resource must have, NEVER when none matches; None: any.

    current: the version known here, None when there is no such resource. One of several tags suffices; a tag
    that is not a version matches nothing.
    """
    tags = [tag.strip() for tag in if_match.split(",")]
    if "*" in tags:
        return NEVER if current is None else None
    texts = [tag.removeprefix('"').removesuffix('"') for tag in tags]
    versions = [int(text) for text in texts if text.isdecimal() and len(text) <= _DIGITS_MAX]
    if current in versions:
        return current
    return versions[0] if versions else NEVER
