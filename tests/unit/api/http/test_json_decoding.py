"""Errors of JSON bodies: what is wrong, and where."""

from typing import Any

import pytest

from app.api.append.json_bodies import AppendIn, RecordIn
from app.api.http import json_decoding
from app.api.http.json_decoding import decode_as
from app.api.http.log_call import _NoFields
from app.api.routes.cursors import CursorIn
from app.api.routes.log_actions import FenceIn
from app.api.routes.logs import LogIn
from app.api.schemas.documents import SchemaIn
from app.errors import InvalidJson, InvalidRequest


def test_an_empty_body_is_called_empty() -> None:
    with pytest.raises(InvalidJson, match="the body is empty"):
        decode_as(LogIn, b"")


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b'{"name": "a"', "JSON is malformed: it ends too early"),
        (b'{"name": "\\ud800', "JSON is malformed: it ends too early"),
        (b'{"name": "\\ud800"}', "JSON is malformed: invalid utf-16 surrogate pair"),
        (b'{"name": "\\ud800\\n"}', "JSON is malformed: invalid utf-16 surrogate pair"),
        (b'{"name": "\\\\ud800"', "JSON is malformed: it ends too early"),  # an escaped backslash
        (b'{"name": "a",}', r"JSON is malformed: trailing comma in object \(byte 13\)"),
        (b'{"name": ' + b"[" * 100_000, "JSON is nested too deeply"),
    ],
)
def test_malformed_json_is_called_json(body: bytes, detail: str) -> None:
    with pytest.raises(InvalidJson, match=f"^{detail}$"):
        decode_as(LogIn, body)


def test_only_the_end_of_a_large_body_that_ends_too_early_is_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A search in 16 MiB would take more than a second, in which no thread of the node could run."""
    searched = []

    class Pattern:
        def search(self, text: bytes, start: int = 0) -> None:
            searched.append(len(text) - start)

    monkeypatch.setattr(json_decoding, "_LONE_SURROGATE", Pattern())
    with pytest.raises(InvalidJson, match="it ends too early"):
        decode_as(LogIn, b'{"name": "' + b"a" * 1_000_000)
    assert len(searched) == 1
    assert searched[0] < 100


@pytest.mark.parametrize("backslashes", range(40))
def test_a_lone_surrogate_is_named_behind_any_number_of_escaped_backslashes(backslashes: int) -> None:
    for before in (b"", b"a" * 100):
        text = b'{"name": "' + before + b"\\\\" * (backslashes // 2) + b"\\" * (backslashes % 2)
        detail = "it ends too early" if backslashes % 2 else "invalid utf-16 surrogate pair"
        with pytest.raises(InvalidJson, match=detail):
            decode_as(LogIn, text + b'\\ud800"' + b"}" * (backslashes % 2 == 0))


def test_the_pointer_to_a_value_of_a_map_is_that_of_the_map() -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_as(LogIn, b'{"name": "a", "priorities": {"n1": -1}}')
    assert refused.value.errors == [{"pointer": "/priorities", "detail": "Expected `int` >= 0"}]


@pytest.mark.parametrize(
    ("kind", "body", "detail"),
    [
        (CursorIn, b'{"index": -1}', "Expected `int` >= 0, got -1"),
        (CursorIn, b'{"index": "5"}', 'Expected `int`, got `str`: "5"'),
        (CursorIn, b'{"index": 5, "fence": 1.5}', "Expected `bool`, got `float`: 1.5"),
        (CursorIn, b'{"index": 1e400}', "Number out of range"),
        (CursorIn, b'{"index": null}', "Expected `int`, got `null`"),
        (CursorIn, b'{"index": [1]}', "Expected `int`, got `array`"),
        (CursorIn, b"5", "Expected `object`, got `int`"),
        (FenceIn, b'{"token": 5}', "Expected `str | null`, got `int`"),
        (RecordIn, b'{"value_base64": "secret"}', "Invalid base64 encoded string"),
        (RecordIn, b'{"value": "a", "key_base64": "secret"}', "Invalid base64 encoded string"),
    ],
)
def test_a_refusal_has_the_received_value_unless_it_is_a_secret(kind: Any, body: bytes, detail: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_as(kind, body)
    assert refused.value.errors[0]["detail"] == detail


def test_a_choice_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_as(SchemaIn, b'{"format": "xml", "definition": "id BIGINT"}')
    detail = 'must be one of avro, json, protobuf, got "xml"'
    assert refused.value.errors == [{"pointer": "/format", "detail": detail}]


def test_an_unknown_field_is_refused_with_those_of_its_object() -> None:
    known = "value, value_json, value_base64, key, key_base64, timestamp, headers"
    for kind, body, pointer in (
        (RecordIn, b'{"order": 17}', "/order"),
        (AppendIn, b'{"records": [{"value": "a"}, {"order": 17}]}', "/records/1/order"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            decode_as(kind, body)
        assert refused.value.errors == [
            {"pointer": pointer, "detail": f"unknown field; the fields are {known}"}
        ]


def test_an_unknown_field_of_an_object_of_no_known_fields_is_refused_without_a_list() -> None:
    for kind, body, pointer in (
        (_NoFields, b'{"order": 17}', "/order"),
        (AppendIn, b'{"value": "a", "headers": [["h", {"order": 17}]]}', "/headers/0/1/order"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            decode_as(kind, body)
        assert refused.value.errors == [{"pointer": pointer, "detail": "unknown field"}]


def test_a_value_that_is_not_text_is_refused_with_the_field_for_json() -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_as(AppendIn, b'{"records": [{"value": {"order": 17}}]}')
    detail = "Expected `str | null`, got `object`; `value_json` takes any JSON value"
    assert refused.value.errors == [{"pointer": "/records/0/value", "detail": detail}]


def test_a_fault_of_the_whole_body_is_not_at_a_pointer() -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_as(CursorIn, b"5")
    assert refused.value.errors[0]["pointer"] == ""
    assert str(refused.value) == "the body: Expected `object`, got `int`"


def test_a_long_value_is_shown_in_part() -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_as(CursorIn, b'{"index": 1, "holder": "%s"}' % (b"x" * 300))
    detail = refused.value.errors[0]["detail"]
    assert detail.startswith('Expected `str` of length <= 255, got "xxx')
    assert len(detail) < 150


@pytest.mark.parametrize(("blanks", "shown"), [(0, ': "5"'), (70_000, "")])
def test_a_large_body_is_not_decoded_again_to_show_a_value(blanks: int, shown: str) -> None:
    """A second decoding of a body of 15 MB takes 400 MiB and more than a second."""
    with pytest.raises(InvalidRequest) as refused:
        decode_as(CursorIn, b'{"index": "5"%b}' % (b" " * blanks))
    assert refused.value.errors[0]["detail"] == f"Expected `int`, got `str`{shown}"
