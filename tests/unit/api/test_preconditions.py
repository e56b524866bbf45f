"""`If-Match`: which version a change requires. `If-None-Match`: whether a reader holds the version."""

import pytest

from app.api.http.preconditions import NEVER, is_held, wanted_version


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


@pytest.mark.parametrize(
    ("if_none_match", "held"),
    [
        (None, False),
        ("", False),
        ('"6"', False),
        ("7", False),
        ('"7"', True),
        ('W/"7"', True),
        ('"6" ,"7"', True),
        ("*", True),
    ],
)
def test_a_reader_holds_the_version_that_it_names(if_none_match: str | None, held: bool) -> None:
    assert is_held(if_none_match, '"7"') is held
