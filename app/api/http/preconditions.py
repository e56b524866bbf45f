"""`If-Match`: the version of a resource that a change requires; `If-None-Match`: versions that a reader
holds (RFC 9110, sections 13.1.1 and 13.1.2)."""

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


def is_held(if_none_match: str | None, etag: str) -> bool:
    """Return whether the client holds the version with this tag, so that a GET is answered 304.

    if_none_match: the header of a GET of a resource that exists, None when absent. Tags are compared weakly.
    """
    tags = [tag.strip() for tag in (if_none_match or "").split(",")]
    return "*" in tags or any(tag.removeprefix("W/") == etag for tag in tags)
