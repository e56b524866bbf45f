"""Command groups: similar names for a misspelled command, and errors as JSON where --json is given."""

import difflib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click
from click.core import ParameterSource
from click.exceptions import NoArgsIsHelpError

from app.cli.context import ExitCode
from app.extras import extra_of, install_command
from app.local_problem import local_problem

_KINDS_OF_NUMBERS = {"integer range": "a whole number", "float range": "a number"}  # click's words, and ours


class RootGroup(click.Group):
    """Group that names similar commands when one is misspelled, and reports every error itself: one line, or
    with --json a problem document, on standard error."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if args and args[0] not in names and not args[0].startswith("-") and not ctx.resilient_parsing:
            similar = difflib.get_close_matches(args[0], names, n=2, cutoff=0.6)
            advice = f"Did you mean {' or '.join(map(repr, similar))}?" if similar else "See --help."
            raise click.UsageError(f"No such command {args[0]!r}. {advice}", ctx)
        return super().resolve_command(ctx, args)

    def main(self, args: Sequence[str] | None = None, *positional: Any, **options: Any) -> Any:
        """Run one command and exit with its exit code."""
        arguments = list(sys.argv[1:] if args is None else args)
        own = arguments[: arguments.index("--")] if "--" in arguments else arguments
        as_json = "--json" in own
        try:
            code = super().main(arguments, *positional, **{**options, "standalone_mode": False})
        except click.Abort:
            sys.exit(ExitCode.INTERRUPTED)
        except BrokenPipeError:
            # the reader of the output has closed it (`commitlog read | head`): nothing more can be written
            _discard_output()
            sys.exit(1)
        except click.ClickException as error:
            _report(_with_advice(error, as_json=as_json), as_json=as_json)
            sys.exit(error.exit_code)
        except ModuleNotFoundError as error:
            failure = not_installed(error)
            if failure is None:
                raise
            _report(failure, as_json=as_json)
            sys.exit(failure.exit_code)
        except OSError as error:
            place = "" if error.filename is None else f": {error.filename}"
            failure = click.ClickException(f"{error.strerror or error}{place}")
            if error.filename is not None:
                _report(failure, as_json=as_json)
            else:  # of the output, perhaps after an append
                _discard_output()
                _report(failure, as_json=as_json, outcome="unknown")
            sys.exit(1)
        except UnicodeEncodeError as error:
            excerpt = error.object[max(0, error.start - 40) : error.end + 40]
            _report(click.UsageError(f"{excerpt!r} is not text: {error.reason}"), as_json=as_json)
            sys.exit(ExitCode.USAGE)
        sys.exit(code if isinstance(code, int) else 0)


def _discard_output() -> None:
    """Let what is left of the output be written nowhere, since Python would report at its end that it cannot
    be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def not_installed(error: ModuleNotFoundError) -> click.ClickException | None:
    """Return the failure of a command whose library is in an extra that is not installed; None for others."""
    module = (error.name or "").partition(".")[0]
    extra = extra_of(module)
    if extra is None:
        return None
    return click.ClickException(
        f"this command needs {module}, which is not installed: {install_command(extra)}"
    )


def _with_advice(error: click.ClickException, *, as_json: bool) -> click.ClickException:
    """Return the error in plain words; it names --log to a person who gave a command the name of a log as an
    argument."""
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    for kind, words in _KINDS_OF_NUMBERS.items():
        error.message = error.message.replace(  # type: ignore[misc]  # click formats it when it is shown
            f"is not a valid {kind}", f"is not {words}"
        )
    is_help = as_json and isinstance(error, NoArgsIsHelpError)
    if (
        ctx is not None
        and isinstance(ctx.command, click.Group)
        and (is_help or error.message == "Missing command.")  # a group alone does nothing
    ):
        names = "" if ctx.parent is None else f" It is one of {', '.join(ctx.command.list_commands(ctx))}."
        return click.UsageError(f"Missing command.{names} See --help.", ctx)
    if ctx is None or not error.message.startswith("Got unexpected extra argument"):
        return error
    takes_log = any(each.name == "log" for each in ctx.command.params if isinstance(each, click.Option))
    if takes_log and ctx.get_parameter_source("log") is not ParameterSource.COMMANDLINE:
        return click.UsageError(f"{error.message}. The option --log names the log.", ctx)
    return error


def _report(error: click.ClickException, *, as_json: bool, outcome: str = "not_applied") -> None:
    """Print the error. A refusal of a node is printed as the node's problem document. outcome: of an error of
    another kind."""
    if not as_json:
        if isinstance(error, click.UsageError) or hasattr(error, "problem"):
            error.show()
        else:
            click.echo(f"commitlog: {error.format_message()}", err=True)
        return
    problem = getattr(error, "problem", None)
    if problem is None:
        usage = isinstance(error, click.UsageError)
        problem = local_problem("usage" if usage else "failed", error.format_message(), outcome=outcome)
    click.echo(json.dumps(problem, ensure_ascii=False), err=True)
