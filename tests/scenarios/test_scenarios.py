"""Every transcript has the recorded results."""

from pathlib import Path

import pytest

from tests.scenarios.runner import replay, rules_of, scenario_files


def _parameters() -> list[object]:
    return [
        pytest.param(path, id=path.stem, marks=pytest.mark.rule(*rules_of(path.read_text())))
        for path in scenario_files()
    ]


@pytest.mark.parametrize("path", _parameters())
def test_the_transcript_is_what_happens(path: Path) -> None:
    assert replay(path.read_text()) == path.read_text()
