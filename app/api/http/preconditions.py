"""`If-Match`: which version of a resource a change asks for (RFC 9110, section 13.1.1)."""

from typing import Final

NEVER: Final = -2  # a version that nothing ever has
_DIGITS_MAX: Final = 18


def wanted_version(if_match: str, current: int | None) -> int | None:
    """The version that must be found when the change is decided, NEVER when none will do; None: any.

    current: the version that is known here, None when there is no such resource. Of several tags the one
    that fits counts; tags that are none of ours fit nothing.
    """
    tags = [tag.strip() for tag in if_match.split(",")]
    if "*" in tags:
        return NEVER if current is None else None
    texts = [tag.removeprefix('"').removesuffix('"') for tag in tags]
    versions = [int(text) for text in texts if text.isdecimal() and len(text) <= _DIGITS_MAX]
    if current in versions:
        return current
    return versions[0] if versions else NEVER
