"""A leading node, for the tests of a driver."""

from pathlib import Path

import pytest

from tests.unit.node.replica.driver_support import Node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)
