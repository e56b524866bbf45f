"""What all tests share: a rule marker names a rule that stands in app/RULES.md."""

import pytest

from tests.rules import read_rules


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    known = read_rules()
    for item in items:
        for marker in item.iter_markers("rule"):
            unknown = [number for number in marker.args if number not in known]
            if unknown or not marker.args:
                raise pytest.UsageError(f"{item.nodeid}: no such rule in app/RULES.md: {unknown or 'none'}")
