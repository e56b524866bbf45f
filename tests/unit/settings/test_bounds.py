"""Numbers of configuration files: what could not work is refused, with setting, value and bound."""

from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from app.errors import ConfigError
from app.settings.file import _SECTIONS, parse
from app.settings.model import TracingSettings

ZERO_ALLOWED = {
    "storage.tail_cache_bytes",
    "disk.reserve_bytes",
    "tracing.sample_percent",
    "http.shutdown_grace_ms",
}


def document(**sections: Any) -> dict[str, Any]:
    nodes = [
        {"id": f"n{k}", "listen": f"127.0.0.1:810{k}", "peer_listen": f"127.0.0.1:910{k}", "data": f"d{k}"}
        for k in (1, 2, 3)
    ]
    return {"cluster": {"id": "c"}, "nodes": nodes, **sections}


def keys_of(*types: object) -> list[tuple[str, str]]:
    """Return (section, key) of all settings with one of these types."""
    return [
        (section, column.name)
        for section, config in _SECTIONS.items()
        for column in fields(config)
        if get_type_hints(config)[column.name] in types
    ]


@pytest.mark.parametrize(("section", "key"), keys_of(int, int | None))
def test_a_number_below_its_bound_is_refused_by_name_and_value(section: str, key: str) -> None:
    least = 0 if f"{section}.{key}" in ZERO_ALLOWED else 1
    given = least - 1
    with pytest.raises(ConfigError, match=rf"^\[{section}\] .*{key} .*, got {given}$"):
        parse(document(**{section: {key: given}}), "n1")


@pytest.mark.parametrize("name", sorted(ZERO_ALLOWED))
def test_zero_is_accepted_where_it_means_none(name: str) -> None:
    section, key = name.split(".")
    settings = parse(document(**{section: {key: 0}}), "n1")
    assert getattr(getattr(settings, section), key) == 0


@pytest.mark.parametrize("wrong", [True, "7", 1.0])
@pytest.mark.parametrize(("section", "key"), keys_of(int, int | None))
def test_a_number_is_not_a_text_or_a_boolean(section: str, key: str, wrong: object) -> None:
    """`max_pending = true` would be 1."""
    with pytest.raises(ConfigError, match=rf"^{section}\.{key}: must be a valid integer, got {wrong!r}$"):
        parse(document(**{section: {key: wrong}}), "n1")


@pytest.mark.parametrize("wrong", [1, "yes"])
@pytest.mark.parametrize(("section", "key"), keys_of(bool, bool | None))
def test_a_boolean_is_not_a_number_or_a_text(section: str, key: str, wrong: object) -> None:
    with pytest.raises(ConfigError, match=rf"^{section}\.{key}: must be a valid boolean, got {wrong!r}$"):
        parse(document(**{section: {key: wrong}}), "n1")


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        ({"logs": [{"name": "a", "replicas": True}]}, "got True"),
        ({"logs": [{"name": "a", "retention_ms": "7"}]}, r"logs\.0\.retention_ms: .* got '7'$"),
        ({"raft": {"election_timeout_ms": [300, 300]}}, r"\[300, 300\]$"),
        ({"raft": {"election_timeout_ms": [0, 300]}}, r"\[0, 300\]$"),
        ({"raft": {"heartbeat_interval_ms": 251}}, r"heartbeat_interval_ms must be at most 250, .* got 251$"),
        ({"raft": {"tick_interval_ms": 101}}, r"tick_interval_ms must be at most 100, .* got 101$"),
        ({"raft": {"push_max_bytes": 1 << 27}}, r"push_max_bytes must be at most 67108864, .* 134217728$"),
        ({"raft": {"commit_interval_ms": 1_001}}, "at most 1000, idle_commit_interval_ms, got 1001$"),
        (
            {"raft": {"commit_interval_ms": 60_001, "idle_commit_interval_ms": 60_001}},
            "commit_interval_ms must be at most 60000, because .*, got 60001$",
        ),
        ({"controller": {"election_timeout_ms": [2, 9]}}, r"\[controller\] election_timeout_ms .* \[2, 9\]$"),
        ({"controller": {"retry_interval_ms": 501}}, r"retry_interval_ms must be at most 500, .* got 501$"),
        ({"ha": {"ha_transfer_batch_size": 4_194_305}}, "at most 4194304 .* got 4194305$"),
        ({"ha": {"ha_send_heartbeat_interval_ms": 751}}, "ha_max_time_slave_not_catchup_ms, got 751$"),
        ({"ha": {"ha_refused_interval_max_ms": 299}}, "at least 300, ha_reconnect_interval_ms, got 299$"),
        ({"http": {"sse_ping_ms": 15_001}}, "sse_ping_ms must be from 1 to 15000, got 15001$"),
        ({"http": {"max_head_bytes": 1_023}}, "max_head_bytes must be at least 1024, got 1023$"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_value_and_bound(
    sections: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse(document(**sections), "n1")


@pytest.mark.rule("C-01")
def test_the_shortest_elections_of_the_controllers_can_be_used() -> None:
    """Their heartbeats have a third of the shortest election timeout, at least 1 ms."""
    from app.node.metadata.service import controller_raft

    settings = parse(document(controller={"election_timeout_ms": [3, 4]}), "n1")
    assert controller_raft(settings).heartbeat_interval_ms == 1


def test_nodes_with_one_url_are_refused() -> None:
    """Each would send the other's requests to itself: `listen` is the same on all of them, and the address
    that others use is missing."""
    given = document(security={"allow_insecure": True})
    for node in given["nodes"]:
        node["listen"] = "0.0.0.0:8101"
    with pytest.raises(ConfigError, match=r"^\[\[nodes\]\] url must be unique: http://0\.0\.0\.0:8101, "):
        parse(given, "n1")
    for node in given["nodes"]:
        node["url"] = f"http://{node['id']}.example:8101"
    assert parse(given, "n1").node.url == "http://n1.example:8101"


@pytest.mark.parametrize(
    "endpoint", ["collector:4318", "http://", "http:///v1", "http://:4318", "http://h:99999"]
)
def test_an_endpoint_that_cannot_be_called_is_refused(endpoint: str) -> None:
    """Otherwise each second's spans were dropped, and a log line was the only sign of it."""
    with pytest.raises(ConfigError, match="http or https URL with a host"):
        TracingSettings(endpoint=endpoint)


@pytest.mark.parametrize("endpoint", ["http://h", "HTTPS://ops:x@h.example:4318/base/", "http://[::1]:4318"])
def test_an_endpoint_is_a_url(endpoint: str) -> None:
    assert TracingSettings(endpoint=endpoint).endpoint == endpoint
