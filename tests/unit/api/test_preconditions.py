"""`If-Match`: which version a change asks for."""

import pytest

from app.api.http.preconditions import NEVER, wanted_version


@pytest.mark.parametrize(
    ("if_match", "current", "wanted"),
    [
        ('"7"', 7, 7),
        ('"7"', 8, 7),  # the leader decides: this node may be behind
        ("7", 7, 7),
        ('"5", "7"', 7, 7),
        ('"5", "6"', 7, 5),
        ("*", 7, None),
        ("*", None, NEVER),
        ('"7"', None, 7),
        ('"x"', 7, NEVER),
        ('W/"7"', 7, NEVER),
        ("", 7, NEVER),
        ('"' + "9" * 30 + '"', 7, NEVER),
        ('"-2"', 7, NEVER),
    ],
)
def test_which_version_is_wanted(if_match: str, current: int | None, wanted: int | None) -> None:
    assert wanted_version(if_match, current) == wanted
