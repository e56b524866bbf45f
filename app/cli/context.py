"""Common parts of all commands: --endpoint, --log, --json, exit codes, one-line errors."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

import click

from app.client import (
    ClientError,
    CommitlogClient,
    ConditionFailed,
    InvalidRequest,
    NoAnswer,
    NotFound,
    Problem,
    Unavailable,
    known_nodes,
)
from app.client.client import DEFAULT_ENDPOINT

ADVICE = "start a local cluster with `commitlog up`, or set --endpoint"
GIVE_UP_S = 10.0
Command = TypeVar("Command", bound=Callable[..., Any])


class ExitCode(IntEnum):
    """Exit codes of `commitlog` (docs/api.md §7)."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CONDITION_FAILED = 3
    NOT_FOUND = 4
    UNAVAILABLE = 5
    OUTCOME_UNKNOWN = 6


class CommandFailed(click.ClickException):
    """A failed command: message and exit code."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.exit_code = int(code)  # type: ignore[misc]  # click reads it from the instance

    def show(self, file: Any = None) -> None:
        click.echo(f"commitlog: {self.format_message()}", err=True)


def exit_code_of(error: ClientError, *, writes: bool) -> ExitCode:
    """Return the exit code of a failed call. writes: True if the outcome of the call matters."""
    if writes and error.outcome == "unknown":
        return ExitCode.OUTCOME_UNKNOWN
    if isinstance(error, NoAnswer | Unavailable):
        return ExitCode.UNAVAILABLE
    if isinstance(error, Problem) and error.status in (429, 503, 504):
        return ExitCode.UNAVAILABLE
    if isinstance(error, ConditionFailed):
        return ExitCode.CONDITION_FAILED
    if isinstance(error, NotFound):
        return ExitCode.NOT_FOUND
    if isinstance(error, InvalidRequest) and error.code == "invalid-request":
        return ExitCode.USAGE
    return ExitCode.FAILED


@dataclass(frozen=True)
class Target:
    """Cluster, log and output format of a command."""

    endpoints: Sequence[str]
    log: str
    token: str | None
    as_json: bool
    give_up_s: float

    @contextmanager
    def client(self, *, writes: bool = False) -> Iterator[CommitlogClient]:
        """A client for the length of a `with`, whose errors end the command with their exit code."""
        with CommitlogClient(
            self.endpoints,
            log=self.log,
            token=self.token,
            give_up_s=self.give_up_s,
            waits_for_start=False,
        ) as client:
            try:
                yield client
                if client.connection.nodes:
                    known_nodes.remember(self.endpoints[0], client.connection.nodes)
            except ClientError as error:
                never_reached = isinstance(error, NoAnswer) and error.outcome == "not_applied"
                advice = f"\n{ADVICE}" if never_reached and error.retryable else ""
                raise CommandFailed(f"{error}{advice}", exit_code_of(error, writes=writes)) from error


def target_options(command: Command) -> Command:
    """--endpoint, --log, --token and --json; the command gets a Target as `target`."""

    def with_target(
        endpoint: tuple[str, ...],
        log: str,
        token: str | None,
        as_json: bool,
        give_up_s: float,
        **options: Any,
    ) -> Any:
        return command(target=Target(_split(endpoint), log, token, as_json, give_up_s), **options)

    with_target.__name__ = command.__name__
    with_target.__doc__ = command.__doc__
    with_target.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]  # click's own
    decorated: Any = with_target
    for option in (
        json_option,
        click.option(
            "--give-up-s",
            type=click.FloatRange(0),
            default=GIVE_UP_S,
            show_default=True,
            help="Time limit for retries, seconds.",
        ),
        click.option(
            "--token",
            envvar="COMMITLOG_TOKEN",
            show_envvar=True,
            help="Bearer token, if the cluster requires one.",
        ),
        click.option("--log", "-l", default="default", show_default=True, help="Name of the log."),
        click.option(
            "--endpoint",
            "-e",
            multiple=True,
            envvar="COMMITLOG_ENDPOINT",
            show_envvar=True,
            help="Base URL of a node; may be repeated or separated by commas. The URLs are tried in turn, "
            "then the other nodes of the cluster. Default: the cluster of `commitlog up`, "
            f"else {DEFAULT_ENDPOINT}.",
        ),
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]  # still the command, with more parameters


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _split(endpoints: Sequence[str]) -> list[str]:
    urls = [url.strip().rstrip("/") for text in endpoints for url in text.split(",") if url.strip()]
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise click.BadParameter(
                f"a base URL such as {DEFAULT_ENDPOINT} is required, got {url!r}", param_hint="--endpoint"
            )
    if endpoints and not urls:
        raise click.BadParameter("is empty", param_hint="--endpoint")
    return known_nodes.endpoints_of(urls, DEFAULT_ENDPOINT)


def print_json(document: Any) -> None:
    """Print one JSON document on one line of standard output, and flush."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False, separators=(", ", ": ")) + "\n")
    sys.stdout.flush()


def person_watches() -> bool:
    """Return True if standard error is a terminal, so that progress is visible."""
    return sys.stderr.isatty()
