"""Schemas that are derived from the examples of the OpenAPI document admit every answer."""

from app.api.http.openapi import ETAG, answers, schema_of
from app.api.routes import controller_settings, ha_status
from app.media_types import PROBLEM


def test_the_gap_of_a_slave_may_be_unknown() -> None:
    slave = schema_of(ha_status.HA_STATUS_EXAMPLE)["properties"]["slaves"]["items"]["properties"]
    assert slave["gap_bytes"] == slave["acked_offset"] == {"type": ["integer", "null"]}


def test_changed_settings_are_numbers_and_switches() -> None:
    settings = schema_of(controller_settings.EXAMPLE)["properties"]
    assert settings["changed"] == {"type": "object", "additionalProperties": {}}
    kinds = {schema["type"] for schema in settings["settings"]["properties"].values()}
    assert kinds == {"integer", "boolean"}


def test_routes_share_the_headers_and_the_examples_of_their_problems() -> None:
    """Copies of their own took 1.3 MiB of each node."""
    one, other = answers("storage-full", headers=(ETAG,)), answers("storage-full", "term-changed", status=201)
    assert one["404"]["headers"] is other["404"]["headers"]
    assert one["200"]["headers"] is not other["201"]["headers"]
    first, second = (each["507"]["content"][PROBLEM]["examples"]["storage-full"] for each in (one, other))
    assert first is second
