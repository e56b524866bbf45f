"""Errors of JSON bodies: what is wrong, and where."""

import pytest

from app.api.http.json_decoding import decode_as
from app.api.routes.logs import LogIn
from app.errors import InvalidJson, InvalidRequest


def test_an_empty_body_is_called_empty() -> None:
    with pytest.raises(InvalidJson, match="the body is empty"):
        decode_as(LogIn, b"")


def test_the_pointer_to_a_value_of_a_map_is_that_of_the_map() -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_as(LogIn, b'{"name": "a", "priorities": {"n1": -1}}')
    assert refused.value.errors == [{"pointer": "/priorities", "detail": "Expected `int` >= 0"}]
