"""Names that no log, node or cursor can have are refused in words, wherever they are given."""

import re
from typing import Annotated

import pytest
from click.testing import CliRunner
from pydantic import Field, TypeAdapter, ValidationError

from app.api.http.problems import _complaint
from app.api.routes.logs import check_name
from app.cli.main import cli
from app.client import CommitlogClient
from app.client.operations import Operations
from app.errors import ConfigError, InvalidRequest
from app.names import CURSOR_NAME, KNOWN_NODE_ID, LOG_NAME, NODE_ID, NameRule, check_log_name
from app.settings.toml import validated
from tests.unit.cli.fake_service import Scripted, fake_service

OF_A_LOG = "must have 1 to 128 characters of a-z, 0-9, `.`, `_` and `-`, the first one a letter or a digit"


@pytest.mark.parametrize(
    ("rule", "longest", "first"),
    [
        (LOG_NAME, 128, "aaa11"),
        (NODE_ID, 32, "aA111"),
        (KNOWN_NODE_ID, 64, "aA1._"),
        (CURSOR_NAME, 128, "aA11_"),
    ],
)
def test_the_words_of_a_rule_describe_its_pattern(rule: NameRule, longest: int, first: str) -> None:
    matches = rule.pattern.fullmatch
    assert f"have 1 to {longest} " in rule.words
    assert matches("a" * longest)
    assert not matches("a" * (longest + 1))
    assert all(matches(f"{each}a0._-") for each in first)
    assert not any(matches(each) for each in ("", "a/b", "a b", "ä", "a\n"))


@pytest.mark.parametrize("name", ["a/b", "a\n", "__a", ""])
def test_the_body_of_a_call_gets_the_pointer_and_the_value(name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_name(name)
    assert refused.value.errors == [{"pointer": "/name", "detail": f"{OF_A_LOG}, got {name!r}"}]


def test_a_name_in_a_path_and_in_a_file_is_explained() -> None:
    name = Annotated[str, Field(pattern=LOG_NAME.anchored)]
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(name).validate_python("A")
    (item,) = refused.value.errors()
    assert _complaint({**item, "loc": ("path", "name")}) == ("/path/name", f"{OF_A_LOG}, got 'A'")
    with pytest.raises(ConfigError, match=re.escape(f"0: {OF_A_LOG}, got 'A'")):
        validated(list[name], ["A"])  # type: ignore[arg-type]  # a document of this form


def test_the_client_refuses_a_name_before_any_call() -> None:
    check_log_name("__audit")
    with pytest.raises(ValueError, match="the name of a log must have"):
        CommitlogClient("http://127.0.0.1:1", log="a/b")
    with CommitlogClient("http://127.0.0.1:1") as client:
        for call in (Operations(client).log, Operations(client).delete_log, Operations(client).cursor):
            with pytest.raises(ValueError, match=r"must have 1 to 128 .* got 'a/b'"):
                call("a/b")


@pytest.mark.parametrize(
    "arguments",
    [
        ["logs", "create", "a/b"],
        ["logs", "show", "a/b"],
        ["append", "v", "--log", "a/b"],
        ["cursors", "set", "a/b", "3"],
    ],
)
def test_a_command_refuses_a_name_in_words(arguments: list[str]) -> None:
    with fake_service(lambda _: Scripted(404)) as node:
        result = CliRunner().invoke(cli, [*arguments, "-e", node.url])
        assert (result.exit_code, node.asked) == (2, [])
    assert "must have 1 to 128 " in result.stderr
    assert result.stderr.endswith("got 'a/b'\n")


def test_a_pattern_of_logs_does_not_disturb_commands_about_the_cluster() -> None:
    with fake_service(lambda _: Scripted(200, {"members": []})) as node:
        environment = {"COMMITLOG_LOG": "orders-*"}  # for `materialize`, which takes patterns
        assert CliRunner().invoke(cli, ["members", "-e", node.url], env=environment).exit_code == 0
