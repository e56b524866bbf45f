"""Callers by the token of the call, and the permissions of a token (docs/api.md §5)."""

import asyncio
import logging
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from app.api.access.caller import UNRESTRICTED, Caller, Grant, Scope
from app.api.access.token_lines import TokenLine, hash_line, new_token, parse_line, parse_lines
from app.api.access.tokens import Tokens
from app.cli.access.token import token_command
from app.errors import ConfigError, Forbidden, RateLimited, Unauthenticated
from app.serve import check_security
from app.settings.model import SecuritySettings

READ = frozenset((Scope.READ,))
APPEND = frozenset((Scope.APPEND,))
ADMIN = frozenset((Scope.ADMIN,))


def read_again(tokens: Tokens) -> None:
    """A changed file is used after two reads."""
    for _ in range(2):
        asyncio.run(tokens.refresh())


def tokens_of(tmp_path: Path, *lines: str) -> Tokens:
    file = tmp_path / "tokens"
    file.write_text("".join(f"{line}\n" for line in lines))
    return Tokens.load(file)


def grant_of(line: str) -> Grant:
    token = parse_line(line)
    assert token is not None
    return token.grant


def test_a_file_of_earlier_versions_keeps_its_meaning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        tokens = tokens_of(tmp_path, "# who", "secret-w", "other write", "secret-r read  # dashboards")
    assert "3 tokens in plain text" in caplog.text
    assert "secret-w" not in caplog.text
    for given in (b"Bearer secret-w", b"bearer  other "):
        for scope in Scope:
            tokens.caller("/v1/logs", given).require(frozenset((scope,)), None)
    reader = tokens.caller("/v1/logs", b"Bearer secret-r")
    reader.require(READ, "default")
    for scope in (Scope.APPEND, Scope.CURSORS, Scope.ADMIN):
        with pytest.raises(Forbidden):
            reader.require(frozenset((scope,)), "default")


def test_a_start_warns_once_about_tokens_in_plain_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file is checked before the node opens a port, and loaded afterwards."""
    file = tmp_path / "tokens"
    file.write_text("secret-w\n")
    file.chmod(0o644)
    check_security(SecuritySettings(tokens_file=file))
    Tokens.load(file)
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 2
    assert "1 tokens in plain text" in warnings[0]
    assert "can be read by all users" in warnings[1]


def test_an_invalid_token_is_refused(tmp_path: Path) -> None:
    token = new_token()
    line = hash_line(token, ["read"])
    tokens = tokens_of(tmp_path, line)
    assert token not in line
    hexadecimal = line.split()[0].removeprefix("sha256:").encode()
    refused = (
        None,
        b"",
        b"Bearer",
        b"Bearer other",
        b"Bearer " + hexadecimal,
        b"Bearer sha256:" + hexadecimal,
    )
    for given in (*refused, b"Basic " + token.encode(), token.encode()):
        with pytest.raises(Unauthenticated) as refusal:
            tokens.caller("/metrics", given)
        assert dict(refusal.value.headers())["www-authenticate"].startswith("Bearer")
    assert tokens.caller("/metrics", b"Bearer " + token.encode()).may(READ, None)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/healthz",
        "/readyz",
        "/docs",
        "/v1/openapi.json",
        "/problems",
        "/problems/fenced",
        "/ui",
        "/ui/main.js",
    ],
)
def test_an_open_path_needs_no_token_and_gives_no_right(path: str, tmp_path: Path) -> None:
    tokens = tokens_of(tmp_path, "secret rate=1 write")
    for given in (None, b"Bearer wrong", *[b"Bearer secret"] * 3):
        caller = tokens.caller(path, given)
        caller.enter()
        assert not any(caller.may(frozenset((scope,)), "default") for scope in Scope)


@pytest.mark.parametrize(
    "path", ["/v1/logs", "/metrics", "/ui/overview.json", "/ui/log.json", "/uix", "/docsx"]
)
def test_other_paths_need_one(path: str, tmp_path: Path) -> None:
    with pytest.raises(Unauthenticated):
        tokens_of(tmp_path, "secret").caller(path, None)


def test_a_token_is_limited_to_its_logs() -> None:
    caller = Caller(grant_of("t read append logs=orders.*,invoices name=shop"))
    for log in ("orders.eu", "orders.", "invoices"):
        caller.require(READ, log)
        assert caller.sees(log)
    for other in ("orders", "ordersX", "invoices2", "default", None):
        with pytest.raises(Forbidden, match="shop"):
            caller.require(READ, other)
    with pytest.raises(Forbidden, match="`admin`"):
        caller.require(ADMIN, "invoices")


def test_a_refusal_names_the_remedy(tmp_path: Path) -> None:
    caller = Caller(grant_of("t read append logs=orders.*,invoices name=shop"))
    with pytest.raises(Forbidden) as refusal:
        caller.require(ADMIN, "invoices")
    assert str(refusal.value).endswith("it has `append` and `read` for the logs orders.*, invoices")
    tokens = tokens_of(tmp_path, "secret")
    with pytest.raises(Unauthenticated, match="--token, COMMITLOG_TOKEN or its context"):
        tokens.caller("/v1/logs", None)
    with pytest.raises(Unauthenticated, match="`commitlog token new`"):
        tokens.caller("/v1/logs", b"Bearer other")


def test_the_audit_log_requires_admin() -> None:
    reader, admin = Caller(grant_of("t read append cursors")), Caller(grant_of("u admin"))
    assert not reader.may(READ, "__audit")
    assert not reader.sees("__audit")
    assert admin.may(READ, "__audit")
    assert not admin.may(READ, "default")
    assert Caller(UNRESTRICTED).may(READ, "__audit")


def test_a_rate_is_refilled_by_time() -> None:
    now_s = 0.0
    caller = Caller(grant_of("t read rate=2"), lambda: now_s)
    for _ in range(2):
        caller.enter()
    with pytest.raises(RateLimited) as refusal:
        caller.enter()
    assert dict(refusal.value.headers()) == {"retry-after": "1"}
    assert caller.in_flight == 2
    now_s = 0.5
    caller.enter()
    now_s = 100.0  # no more than the burst is saved
    caller.enter()
    caller.enter()
    with pytest.raises(RateLimited):
        caller.enter()


def test_requests_in_flight_are_limited() -> None:
    caller = Caller(grant_of("t read in_flight=1"))
    caller.enter()
    with pytest.raises(RateLimited, match="1 requests in flight"):
        caller.enter()
    caller.leave()
    caller.enter()


@pytest.mark.parametrize(
    "line",
    [
        "sha256:abc read",
        "SHA256:" + "a" * 64 + " read",
        "sha256:" + "A" * 64 + " read",
        '"sha256:' + "a" * 64 + '" read',
        "\ufeff\ufeffsha256:" + "a" * 64 + " read",
        "sha256:" + "a" * 64,  # without a scope
        "t shout",
        "t a b c",
        "t logs=x",
        "t read logs=",
        "t read logs=A*",
        "t read logs=a*b",
        "t read rate=0",
        "t read rate=x",
        "t read rate=1 rate=2",
        "t read colour=red",
        "t read name=" + "n" * 65,
        "t read c2VjcmV0LXRva2Vu==",
        "t read secret-other",
    ],
)
def test_a_line_that_makes_no_sense_is_refused_without_its_token(line: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_lines(f"# first\nsecret-{line}" if line.startswith("t ") else f"# first\n{line}")
    assert str(refusal.value).startswith("line 2:")
    assert not any(token in str(refusal.value) for token in ("secret", "c2VjcmV0LXRva2Vu"))


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"])
def test_a_comment_ends_with_its_line_alone(separator: str) -> None:
    """A word after the separator was a token that permits everything."""
    hashed = hash_line("known", ["read"])
    assert parse_lines(f"# shop{separator}test\r\n{hashed} # of{separator}ops\n") == parse_lines(hashed)


def test_a_byte_order_mark_does_not_make_a_hash_a_token() -> None:
    hashed = hash_line("known", ["read"])
    assert parse_lines(f"\ufeff{hashed}\n") == parse_lines(hashed)


def test_a_file_without_tokens_is_refused(tmp_path: Path) -> None:
    for content in ("", "# none\n"):
        (tmp_path / "tokens").write_text(content)
        with pytest.raises(ConfigError, match="at least one"):
            Tokens.load(tmp_path / "tokens")
    with pytest.raises(ConfigError):
        Tokens.load(tmp_path / "absent")
    assert not Tokens.load(None).needed


def test_tokens_are_rotated_while_the_node_runs(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    tokens = tokens_of(tmp_path, "old read rate=1", "gone read")
    before, gone = (tokens.caller("/v1/logs", b"Bearer " + name) for name in (b"old", b"gone"))
    before.enter()
    file.write_text("old append rate=1\nnew read\n")
    read_again(tokens)
    assert gone.revoked
    assert tokens.caller("/v1/logs", b"Bearer new").may(READ, None)
    with pytest.raises(Unauthenticated):
        tokens.caller("/v1/logs", b"Bearer gone")
    after = tokens.caller("/v1/logs", b"Bearer old")
    assert (after.may(READ, None), after.may(APPEND, None), after.revoked) == (False, True, False)
    with pytest.raises(RateLimited):  # what was spent is not forgotten
        after.enter()


def test_a_changed_file_does_not_occupy_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of 4 MiB has 36 000 tokens: to parse them takes 0.4 s, in which no heartbeat is sent."""
    tokens = tokens_of(tmp_path, "old read")
    threads: list[int] = []

    def parse(text: str) -> dict[bytes, TokenLine]:
        threads.append(threading.get_ident())
        return parse_lines(text)

    monkeypatch.setattr("app.api.access.tokens.parse_lines", parse)
    (tmp_path / "tokens").write_text("new read\n")
    read_again(tokens)
    assert tokens.caller("/v1/logs", b"Bearer new").may(READ, None)
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("half", ["one read append", "one read append logs=x", "one read append logs=x\n"])
def test_a_file_that_is_half_written_changes_nothing(tmp_path: Path, half: str) -> None:
    """Its last line may permit more than the whole one, and the lines after it would be removed tokens."""
    file = tmp_path / "tokens"
    tokens = tokens_of(tmp_path, "one read logs=x", "two read")
    callers = [tokens.caller("/v1/logs", b"Bearer " + name) for name in (b"one", b"two")]
    before = [caller.grant for caller in callers]
    file.write_text(half)
    asyncio.run(tokens.refresh())
    assert [caller.grant for caller in callers] == before
    assert not any(caller.revoked for caller in callers)
    file.write_text("one read append logs=x,y\ntwo append\n")
    asyncio.run(tokens.refresh())
    assert [caller.grant for caller in callers] == before
    asyncio.run(tokens.refresh())
    assert callers[0].grant.logs == ("x", "y")
    assert callers[1].grant.scopes == APPEND
    assert not any(caller.revoked for caller in callers)


def test_a_token_that_changes_keeps_or_loses_the_rights_of_calls_in_progress(tmp_path: Path) -> None:
    tokens = tokens_of(tmp_path, "a read append logs=x", "b read logs=x", "c read logs=x", "d read")
    callers = [tokens.caller("/v1/logs", b"Bearer " + name) for name in (b"a", b"b", b"c", b"d")]
    granted = [caller.grant for caller in callers]
    (tmp_path / "tokens").write_text("a read logs=x\nb read append logs=x rate=5\nc read\n")
    read_again(tokens)
    held = [caller.holds(before) for caller, before in zip(callers, granted, strict=True)]
    assert held == [False, True, True, False]


def test_a_broken_file_leaves_the_tokens_as_they_were(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tokens"
    tokens = tokens_of(tmp_path, "old read")
    for content in (b"", b"x y z", b"\xff\xfe"):
        file.write_bytes(content)
        read_again(tokens)
        assert tokens.failing
        assert tokens.caller("/v1/logs", b"Bearer old").may(READ, None)
    file.unlink()
    for _ in range(3):
        read_again(tokens)
    assert (
        len([line for line in caplog.records if "stay valid" in line.message]) == 4
    )  # once for each failure
    file.write_text("next read\n")
    read_again(tokens)
    assert not tokens.failing
    assert tokens.caller("/v1/logs", b"Bearer next").may(READ, None)


def test_a_file_that_is_put_back_as_it_was_ends_the_failure_with_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tokens"
    tokens = tokens_of(tmp_path, "old read")
    before = file.read_text()
    file.write_text("x y z")
    read_again(tokens)
    file.write_text(before)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            read_again(tokens)
    assert not tokens.failing
    assert len([line for line in caplog.records if "tokens file read again" in line.message]) == 1


def test_a_file_that_other_users_can_write_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("one\n")
    tokens = Tokens.load(file)
    file.write_text("one\ntwo\n")
    file.chmod(0o646)
    with pytest.raises(ConfigError, match="0646: other users must not write it"):
        Tokens.load(file)
    read_again(tokens)
    assert tokens.failing
    with pytest.raises(Unauthenticated):
        tokens.caller("/v1/logs", b"Bearer two")
    file.chmod(0o644)
    read_again(tokens)
    assert tokens.caller("/v1/logs", b"Bearer two").grant.covers("any")


@pytest.mark.parametrize(("mode", "warns"), [(0o644, True), (0o640, False), (0o600, False)])
def test_a_file_that_other_users_can_read_is_warned_about(
    tmp_path: Path, mode: int, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"sha256:{'0' * 64} read\n")
    file.chmod(mode)
    Tokens.load(file)
    assert (f"use `chmod 600 {file}`" in caplog.text) == warns


def test_the_command_makes_lines_that_the_node_accepts(tmp_path: Path) -> None:
    options = ["--scope", "append", "--logs", "orders.*", "--name", "shop", "--rate", "5", "--in-flight", "2"]
    made = CliRunner().invoke(token_command, ["new", *options])
    assert made.exit_code == 0, made.output
    token, line = made.stdout.splitlines()
    hashed = CliRunner().invoke(token_command, ["hash", *options], input=f"{token}\n")
    assert hashed.stdout == f"{line}\n"
    grant = tokens_of(tmp_path, line).caller("/v1/logs", f"Bearer {token}".encode()).grant
    assert grant == Grant(name="shop", scopes=APPEND, logs=("orders.*",), requests_per_s=5, in_flight=2)
    for wrong in (
        ["new", "--scope", "read", "--name", "a b"],
        ["new", "--scope", "read", "--logs", "A"],
        ["new"],
    ):
        assert CliRunner().invoke(token_command, wrong).exit_code == 2
