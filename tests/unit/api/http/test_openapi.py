"""Schemas that are derived from the examples of the OpenAPI document admit every answer."""

from app.api.http.openapi import schema_of
from app.api.routes import controller_settings, ha_status


def test_the_gap_of_a_slave_may_be_unknown() -> None:
    slave = schema_of(ha_status.HA_STATUS_EXAMPLE)["properties"]["slaves"]["items"]["properties"]
    assert slave["gap_bytes"] == slave["acked_offset"] == {"type": ["integer", "null"]}


def test_changed_settings_are_numbers_and_switches() -> None:
    settings = schema_of(controller_settings.EXAMPLE)["properties"]
    assert settings["changed"] == {"type": "object", "additionalProperties": {}}
    kinds = {schema["type"] for schema in settings["settings"]["properties"].values()}
    assert kinds == {"integer", "boolean"}
