"""Addresses of nodes: those of the configuration stay, those that logs name follow the logs (R-10)."""

from pathlib import Path

import pytest

from app.log.state import Address
from app.node.network.node_directory import Directory
from app.settings.model import NodeSettings

OLD, NEW = Address("http://old:8104", "old:9104"), Address("http://new:8104", "new:9104")
CONFIGURED = NodeSettings(
    id="n1",
    listen="",
    url="http://one:8101",
    peer_listen="",
    peer_address="one:9101",
    data=Path(),
)


def placed(directory: Directory, node_id: str) -> Address | None:
    node = directory.find(node_id)
    return None if node is None else Address(node.url, node.peer_address)


@pytest.mark.rule("R-10")
def test_a_node_that_was_removed_and_added_again_is_at_its_new_address() -> None:
    directory = Directory((CONFIGURED,))
    assert [node.id for node in directory.learn([{"n4": OLD}])] == ["n4"]
    assert directory.learn([{"n4": OLD}]) == []
    assert directory.learn([{}]) == []  # removed
    assert [node.peer_address for node in directory.learn([{"n4": NEW}])] == ["new:9104"]
    assert (placed(directory, "n4"), directory.host_of("n4")) == (NEW, "new")


@pytest.mark.rule("R-10")
def test_an_address_stays_while_a_log_names_it() -> None:
    """The logs change one after another, and a replica may lag."""
    directory = Directory((CONFIGURED,))
    directory.learn([{"n4": OLD}, {"n4": OLD}])
    assert directory.learn([{"n4": NEW}, {"n4": OLD}]) == []
    assert placed(directory, "n4") == OLD
    directory.learn([{"n4": NEW}, {}])
    assert placed(directory, "n4") == NEW
    assert directory.learn([{"n4": NEW}, {"n4": NEW}]) == []


@pytest.mark.rule("R-10")
def test_a_replica_that_left_its_log_gives_only_addresses_that_no_member_knows() -> None:
    directory = Directory((CONFIGURED,))
    assert [node.id for node in directory.learn([], [{"n4": OLD}])] == ["n4"]
    directory.learn([{"n4": NEW}], [{"n4": OLD}])
    assert placed(directory, "n4") == NEW
    assert directory.learn([{}], [{"n4": OLD}]) == []
    assert placed(directory, "n4") == NEW


def test_a_node_of_the_configuration_stays_where_the_file_places_it() -> None:
    directory = Directory((CONFIGURED,))
    assert directory.learn([{"n1": NEW}]) == []
    assert placed(directory, "n1") == Address("http://one:8101", "one:9101")
