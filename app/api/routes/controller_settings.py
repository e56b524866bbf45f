"""Settings of the controllers at run time (RocketMQ: getControllerConfig, updateControllerConfig)."""

import secrets
from contextlib import suppress
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from app.api.http.controller_calls import decided
from app.api.http.dependencies import Nothing, json_answer
from app.api.http.log_call import Call
from app.api.http.openapi import ETAG, OF_A_BODY, OF_A_COMMIT, answers, json_request
from app.api.http.preconditions import wanted_version
from app.controller.commands import ChangeControllers
from app.controller.config import CHANGEABLE_AT_RUN_TIME, changed_config
from app.controller.metadata import CONTROLLER_LOG
from app.errors import ConfigError
from app.node.broker import Broker

router = APIRouter(tags=["cluster"])

PositiveInt32 = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]

EXAMPLE: Final = {
    "active": "n1",
    "term": 3,
    "settings": {
        "broker_timeout_ms": 4000,
        "lease_ms": 1500,
        "scan_interval_ms": 50,
        "trim_after_records": 10_000,
        "elect_unclean": True,
    },
    "changed": {"broker_timeout_ms": 4000, "elect_unclean": True},
}


class ControllerSettingsIn(msgspec.Struct, forbid_unknown_fields=True):
    """Absent fields are unchanged; null: the value of the configuration file."""

    broker_timeout_ms: PositiveInt32 | msgspec.UnsetType | None = msgspec.UNSET
    lease_ms: PositiveInt32 | msgspec.UnsetType | None = msgspec.UNSET
    scan_interval_ms: PositiveInt32 | msgspec.UnsetType | None = msgspec.UNSET
    trim_after_records: PositiveInt32 | msgspec.UnsetType | None = msgspec.UNSET
    elect_unclean: bool | msgspec.UnsetType | None = msgspec.UNSET


@router.get(
    "/v1/cluster/controller",
    summary="Get the active controller and the settings of the controllers",
    description="`settings`: as this node knows them, from its configuration file and the changes at run "
    "time. `changed`: the settings that were changed at run time.",
    responses=answers("read-index-unavailable", example=EXAMPLE, of_a_log=False, headers=(ETAG,)),
    response_class=Response,
)
async def controller_settings(call: Call, query: Nothing) -> Response:
    call.wants_json()
    await call.broker.waits.read_index(call.broker.metadata.hosted)
    return _answer(call.broker)


@router.patch(
    "/v1/cluster/controller",
    summary="Change settings of the controllers at run time",
    description="The controllers commit the change. It survives restarts and wins over the configuration "
    "files. `lease_ms` applies to masters that are elected later. With `If-Match` the change applies only "
    "if the version is equal.",
    responses=answers(
        "config-changed", *OF_A_COMMIT, *OF_A_BODY, example=EXAMPLE, of_a_log=False, headers=(ETAG,)
    ),
    openapi_extra=json_request(ControllerSettingsIn, {"broker_timeout_ms": 4000}),
    response_class=Response,
)
async def change_controller_settings(call: Call, query: Nothing) -> Response:
    call.wants_json()
    asked = await call.asked(ControllerSettingsIn)
    changes = {
        name: value
        for name in asked.__struct_fields__
        if not isinstance(value := getattr(asked, name), msgspec.UnsetType)
    }
    if_match = call.request.headers.get("if-match")
    tag = None if if_match is None else wanted_version(if_match, _tag(call.broker))
    version = None if tag is None else tag - 1
    command = ChangeControllers(CONTROLLER_LOG, changes, secrets.token_hex(16), version)
    await decided(call.request, call.broker, command)
    return _answer(call.broker)


def _tag(broker: Broker) -> int:
    """The ETag: 0 before the first change."""
    metadata = broker.metadata.metadata
    return 0 if metadata is None else metadata.settings_version + 1


def _answer(broker: Broker) -> Response:
    metadata, config = broker.metadata.metadata, broker.settings.controller
    changed: dict[str, Any] = {} if metadata is None else dict(metadata.settings)
    with suppress(ConfigError):  # as the controller of this node does: its file wins
        config = changed_config(config, changed)
    hosted = broker.metadata.hosted
    content = {
        "active": hosted.leader_id,
        "term": 0 if hosted.driver is None else hosted.driver.term,
        "settings": {name: getattr(config, name) for name in CHANGEABLE_AT_RUN_TIME},
        "changed": changed,
    }
    return json_answer(content, headers=[(b"etag", b'"%d"' % _tag(broker))])
