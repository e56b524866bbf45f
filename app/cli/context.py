"""Common parts of all commands: --endpoint, --log, --json, exit codes, one-line errors, tables."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from app.durations import Seconds
from app.local_problem import local_problem
from app.names import check_cursor_name, check_idempotency_key, check_log_name, check_token
from app.settings.addresses import is_loopback

if TYPE_CHECKING:  # `--help` imports neither
    from rich.table import Table

    from app.client import ClientError, CommitlogClient

PIPE_WIDTH = 10_000  # columns; tables in a pipe are not squeezed
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
_CONTROL |= {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}

ADVICE = "check the address of --endpoint or of the context, and whether the node runs"
LOCAL_ADVICE = (
    "start a local cluster with `commitlog up`, or check the address of --endpoint or of the context"
)
UNKNOWN = "the outcome is unknown: the service may have carried it out, or may still do so"
GIVE_UP_S = 10.0
JOB_NODES_S = 5.0  # to ask for the nodes before a job starts: a host that is down costs two seconds
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
    INTERRUPTED = 130  # as shells report SIGINT


class CommandFailed(click.ClickException):
    """A failed command: message, exit code and problem document."""

    def __init__(
        self,
        message: str,
        code: ExitCode = ExitCode.FAILED,
        problem: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.exit_code = int(code)  # type: ignore[misc]  # click reads it from the instance
        outcome = "unknown" if code is ExitCode.OUTCOME_UNKNOWN else "not_applied"
        self.problem = problem or local_problem(
            code.name.lower().replace("_", "-"),
            message,
            outcome=outcome,
            retryable=code is ExitCode.UNAVAILABLE,
        )

    def show(self, file: Any = None) -> None:
        click.echo(f"commitlog: {self.format_message()}", err=True)


def exit_code_of(error: "ClientError", *, writes: bool) -> ExitCode:
    """Return the exit code of a failed call. writes: True if the outcome of the call matters."""
    from app.client.errors import (
        ConditionFailed,
        InvalidRequest,
        NoAnswer,
        NotFound,
        OtherLog,
        Problem,
        Unavailable,
    )

    if isinstance(error, OtherLog):
        return ExitCode.FAILED
    if writes and error.outcome == "unknown":
        return ExitCode.OUTCOME_UNKNOWN
    if isinstance(error, NoAnswer | Unavailable):
        return ExitCode.UNAVAILABLE
    if isinstance(error, Problem) and error.status in (429, 502, 503, 504):
        return ExitCode.UNAVAILABLE
    if isinstance(error, ConditionFailed):
        return ExitCode.CONDITION_FAILED
    if isinstance(error, NotFound):
        return ExitCode.NOT_FOUND
    if isinstance(error, InvalidRequest) and error.code == "invalid-request":
        return ExitCode.USAGE
    return ExitCode.FAILED


def failure_of(
    error: "ClientError", endpoints: Sequence[str], *, writes: bool, note: str = ""
) -> CommandFailed:
    """Return the failure of a command whose call has failed. note: what the user should know beyond it."""
    from app.client.errors import NoAnswer, Problem

    code = exit_code_of(error, writes=writes)
    never_reached = isinstance(error, NoAnswer) and error.outcome == "not_applied"
    advice = ""
    if never_reached and error.retryable:
        local = all(is_loopback(f"{urlsplit(url).hostname}:0") for url in endpoints)
        advice = f"\n{LOCAL_ADVICE if local else ADVICE}"
    if code is ExitCode.OUTCOME_UNKNOWN:
        advice = f"\n{UNKNOWN}"
    if isinstance(error, Problem):
        problem = {**error.document, "code": error.code, "detail": error.detail, "outcome": error.outcome}
    else:
        outcome, retryable = error.outcome, error.retryable
        problem = local_problem("no-answer", str(error), outcome=outcome, retryable=retryable)
    if note:
        problem["note"] = note
    return CommandFailed(f"{error}{advice}" + (f"\n{note}" if note else ""), code, problem)


@dataclass(frozen=True)
class Target:
    """Cluster, log and output format of a command. learned: those of `endpoints` that earlier commands have
    learned."""

    endpoints: Sequence[str]
    learned: Sequence[str]
    log: str
    token: str | None
    as_json: bool
    give_up_s: float

    def endpoints_of_job(self) -> Sequence[str]:
        """Return the endpoints for a job, which takes all of them as given: those of the command, and the
        nodes that the cluster has now. A node that an earlier command has learned may belong to another
        cluster by now. None of the nodes answers: those of the command alone."""
        from app.client import ClientError, known_nodes
        from app.client.connection import ClusterConnection

        given = [url for url in self.endpoints if url not in self.learned]
        connection = ClusterConnection(
            self.endpoints, token=self.token, give_up_s=JOB_NODES_S, waits_for_start=False
        )
        connection.expect(known_nodes.cluster_of(self.endpoints[0]), self.learned)
        with closing(connection), suppress(ClientError):
            connection.call("GET", "/v1/cluster")
        return list(dict.fromkeys([*given, *connection.nodes]))

    def _notice(self, line: str) -> None:
        """Print why a call waits; with --json standard error is for the problem document alone."""
        if not self.as_json:
            click.echo(f"commitlog: {line}", err=True)

    @contextmanager
    def client(self, *, writes: bool = False) -> Iterator["CommitlogClient"]:
        """A client for the length of a `with`, whose errors end the command with their exit code."""
        from app.client import ClientError, CommitlogClient, known_nodes
        from app.client.retry_notices import notices_to

        try:
            check_log_name(self.log)  # `materialize` alone takes patterns too, and uses no client
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--log") from None
        with (
            notices_to(self._notice),
            CommitlogClient(
                self.endpoints,
                log=self.log,
                token=self.token,
                give_up_s=self.give_up_s,
                waits_for_start=False,
            ) as client,
        ):
            connection = client.connection
            connection.expect(known_nodes.cluster_of(self.endpoints[0]), self.learned)
            try:
                yield client
                if connection.nodes:
                    known_nodes.remember(self.endpoints[0], connection.nodes, connection.cluster)
            except ClientError as error:
                raise failure_of(error, self.endpoints, writes=writes) from error


def target_options(command: Command) -> Command:
    """--endpoint, --log, --token and --json; the command gets a Target as `target`."""
    return _with_target(command, uses_log=True)


def cluster_options(command: Command) -> Command:
    """As `target_options`, for a command about the whole cluster: --log has no effect, and is not shown."""
    return _with_target(command, uses_log=False)


def _or_of_group(ctx: click.Context, option: click.Parameter, value: Any) -> Any:
    """Return the value of an option that a command shares with its groups: `commitlog logs --json list` gives
    it to a group. The value that the command itself gets is the strongest."""
    name, parent = str(option.name), ctx.parent
    if _on_the_command_line(ctx, name):
        return value
    while parent is not None:
        if name in parent.params and _on_the_command_line(parent, name):
            return parent.params[name]
        parent = parent.parent
    return value


def _on_the_command_line(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def not_of_another_cluster(
    ctx: click.Context, endpoint: tuple[str, ...], token: str | None
) -> tuple[tuple[str, ...], str | None]:
    """Return both; without those of the environment if the command line names a context. Raises UsageError
    if it names an endpoint too."""
    if not _is_given(ctx, "context"):
        return endpoint, token
    if _is_given(ctx, "endpoint"):
        raise click.UsageError("--endpoint and --context cannot be used together: a context has endpoints")
    return (), token if _is_given(ctx, "token") else None


def _is_given(ctx: click.Context | None, name: str) -> bool:
    """Return whether the command line has the option, at the command or at one of its groups."""
    return ctx is not None and (_on_the_command_line(ctx, name) or _is_given(ctx.parent, name))


def _refuse_log(options: Mapping[str, Any]) -> None:
    """Raise UsageError if --log is given to a command whose log is that of --of, and which otherwise concerns
    every log."""
    if "of" in options and _is_given(click.get_current_context(), "log"):
        raise click.UsageError("The option --log has no effect on this command. --of LOG names the log.")


def _with_target(command: Command, *, uses_log: bool) -> Command:

    def with_target(
        endpoint: tuple[str, ...],
        context: str | None,
        log: str | None,
        token: str | None,
        as_json: bool,
        give_up_s: float,
        **options: Any,
    ) -> Any:
        if not uses_log:
            _refuse_log(options)
        ctx = click.get_current_context()
        endpoint, token = not_of_another_cluster(ctx, endpoint, token)
        target = find_target(endpoint, context, log, token, as_json=as_json, give_up_s=give_up_s)
        calls = ctx.invoked_subcommand is None  # a group only passes on what stands before its command
        if calls and not endpoint and context is None and not as_json:
            _note_several_clusters()
        if not uses_log:
            target = replace(target, log="default")
        return command(target=target, **options)

    with_target.__name__ = command.__name__
    with_target.__doc__ = command.__doc__
    with_target.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]  # click's own
    decorated: Any = with_target
    for option in (
        json_option,
        _give_up_option,
        _token_option,
        _log_option(hidden=not uses_log),
        _context_option,
        _endpoint_option,
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]  # still the command, with more parameters


def find_target(
    endpoint: Sequence[str],
    context: str | None,
    log: str | None,
    token: str | None,
    *,
    as_json: bool = False,
    give_up_s: float = GIVE_UP_S,
) -> Target:
    """Return the cluster that the options name. Options are stronger than the context."""
    from app.client import contexts

    named = None
    if not endpoint:
        try:
            named = contexts.find(context)
            if named is not None and token is None:
                token = named.token()
        except contexts.UnknownContext as error:
            raise click.UsageError(str(error)) from None
        except contexts.ContextError as error:
            raise CommandFailed(str(error)) from None
        if named is not None:
            endpoint, log = named.endpoints, log or named.log
    _check_token(token)
    endpoints = split_endpoints(endpoint)
    given = split_endpoints(endpoint, learned=False) or endpoints[:1]
    learned = [url for url in endpoints if url not in given]
    return Target(endpoints, learned, log or "default", token, as_json, give_up_s)


def _note_several_clusters() -> None:
    """Name the cluster that a command calls when several run and the user has selected none."""
    from app.client import contexts

    known = contexts.load()
    if known.current is None and len(running := known.running) > 1:
        click.echo(
            f"{len(running)} clusters of `commitlog up` run ({', '.join(running)}); this command calls "
            f"{running[-1]}, the newest. --context or `commitlog context use` selects another",
            err=True,
        )


def _check_token(token: str | None) -> None:
    try:
        check_token(token or "")
    except ValueError as error:
        raise click.UsageError(f"The {error}.") from None


def _checked_by(
    check: Callable[[str], None],
) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    def callback(_ctx: click.Context, _parameter: click.Parameter, name: str | None) -> str | None:
        try:
            if name is not None:
                check(name)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
        return name

    return callback


a_log_name = _checked_by(check_log_name)  # callbacks of arguments
a_cursor_name = _checked_by(check_cursor_name)
an_idempotency_key = _checked_by(check_idempotency_key)  # and of the option


def complete_logs(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the logs of the cluster that begin with `incomplete`; none when no node answers soon."""
    from app.cli.shell.completion import names_of_logs

    return names_of_logs(ctx, incomplete)


def complete_nodes(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the ids of the nodes that begin with `incomplete`; none when no node answers soon."""
    from app.cli.shell.completion import ids_of_nodes

    return ids_of_nodes(ctx, incomplete)


def complete_contexts(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of contexts that begin with `incomplete`."""
    from app.client import contexts

    try:
        known = contexts.load()
    except contexts.ContextError:
        return []  # a command reports it; the line that is being typed is not disturbed
    return [name for name in known.contexts if name.startswith(incomplete)]


# Options of every command that calls a cluster. A group and its commands share them.
json_option = click.option("--json", "as_json", is_flag=True, callback=_or_of_group, help="Print JSON.")
_give_up_option = click.option(
    "--give-up-s",
    type=Seconds(),
    default=GIVE_UP_S,
    show_default=True,
    callback=_or_of_group,
    help="Time limit for retries, seconds.",
)
_token_option = click.option(
    "--token",
    envvar="COMMITLOG_TOKEN",
    show_envvar=True,
    callback=_or_of_group,
    help="Bearer token, if the cluster requires one. The list of processes shows this option; the variable, "
    "or the token file of a context, stays private.",
)
_context_option = click.option(
    "--context",
    envvar="COMMITLOG_CONTEXT",
    show_envvar=True,
    shell_complete=complete_contexts,
    callback=_or_of_group,
    help="Named cluster (`commitlog context`).",
)
_endpoint_option = click.option(
    "--endpoint",
    "-e",
    multiple=True,
    envvar="COMMITLOG_ENDPOINT",
    show_envvar=True,
    callback=_or_of_group,
    help="Base URL of a node; may be repeated or separated by commas. The URLs are tried in turn, "
    "then the other nodes of the cluster. Default: the context in use, else the newest running "
    "`commitlog up`, else http://127.0.0.1:8101.",
)


def _log_option(*, hidden: bool) -> Callable[[Command], Command]:
    return click.option(
        "--log",
        "-l",
        envvar="COMMITLOG_LOG",
        show_envvar=True,
        shell_complete=complete_logs,
        hidden=hidden,
        callback=_or_of_group,
        help="Name of the log. Default: the log of the context, else `default`.",
    )


def split_endpoints(endpoints: Sequence[str], *, learned: bool = True) -> list[str]:
    """Return the base URLs to try: the given ones, and with `learned` what is known of their cluster."""
    from app.client import known_nodes
    from app.client.connection import DEFAULT_ENDPOINT, is_base_url, shown

    urls = [url.strip().rstrip("/") for text in endpoints for url in text.split(",") if url.strip()]
    for url in urls:
        if not is_base_url(url):
            raise click.BadParameter(
                f"a base URL such as {DEFAULT_ENDPOINT} is required, got {shown(url)}",
                param_hint="--endpoint",
            )
    if endpoints and not urls:
        raise click.BadParameter("is empty", param_hint="--endpoint")
    return known_nodes.endpoints_of(urls, DEFAULT_ENDPOINT) if learned else urls


def print_json(document: Any) -> None:
    """Print one JSON document on one line of standard output, and flush."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False, separators=(", ", ": ")) + "\n")
    sys.stdout.flush()


def url_of_node(cluster: Mapping[str, Any], node_id: str) -> str:
    """Return the URL of a node. Raises BadParameter."""
    urls = {str(node["id"]): str(node["url"]) for node in cluster["nodes"]}
    if node_id not in urls:
        raise click.BadParameter(
            f"the node must be one of {', '.join(urls)}, got {node_id!r}", param_hint="--node"
        )
    return urls[node_id]


def counted(count: int, noun: str = "record") -> str:
    """Return the number and its noun: `1 record`, `12,345 records`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def printable(text: str) -> str:
    """Return a text that others have chosen, for a terminal: line ends and control characters are escaped."""
    return text.translate(_CONTROL)


def print_table(table: "Table") -> None:
    """Print a table, without breaks in its title and in the lines of its caption. In a pipe it is as wide as
    it needs to be, also where COLUMNS is set. Cells are texts as they are: others have chosen some of them,
    and rich's markup in one would change the output, or end it with an error."""
    from rich.console import Console, Group
    from rich.text import Text

    parts: list[Table | Text] = [table]  # rich would break title and caption at the width of the table
    if table.title is not None:
        parts.insert(0, Text(str(table.title), style="table.title"))
    if table.caption is not None:
        parts.append(Text(str(table.caption), style="table.caption"))
    table.title = table.caption = None
    for column in table.columns:
        column.overflow = "fold"  # a narrow terminal gets more lines; by default rich cuts texts off
    view = Group(*parts)
    if sys.stdout.isatty() or "FORCE_COLOR" in os.environ:
        Console(markup=False, emoji=False).print(view)
        return
    console = Console(width=PIPE_WIDTH, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(view)
    click.echo("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")))


def person_watches() -> bool:
    """Return True if standard error is a terminal, so that progress is visible."""
    return sys.stderr.isatty()
