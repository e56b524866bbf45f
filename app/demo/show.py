"""Output of the demo: lines and tables, and progress bars on a terminal."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

PLAIN_LINE_EACH_S = 5.0
TABLE_WIDTH = 200  # of a table in a pipe, columns


class Bar:
    """Progress of one piece of work: `to` moves it; without a terminal, one line every few seconds."""

    def __init__(self, show: "Show", what: str, total: int, progress: Progress | None) -> None:
        self._show, self._what, self._total = show, what, total
        self._progress = progress
        self._task = None if progress is None else progress.add_task(what, total=total)
        self._printed_at = time.monotonic()

    def to(self, done: int, note: str = "") -> None:
        """Set the progress to `done`. note: a remark shown beside it."""
        done = min(done, self._total)
        if self._progress is not None and self._task is not None:
            self._progress.update(
                self._task, completed=done, description=f"{self._what} {escape(note)}".rstrip()
            )
        elif time.monotonic() - self._printed_at >= PLAIN_LINE_EACH_S:
            self._printed_at = time.monotonic()
            self._show.line(f"  {self._what}: {done:,} of {self._total:,} {note}".rstrip())


class Spinner:
    """A piece of work whose length is not known: its note, and the seconds that it has taken."""

    def __init__(self, show: "Show", what: str, progress: Progress | None) -> None:
        self._show, self._what = show, what
        self._progress = progress
        self._task = None if progress is None else progress.add_task(what, total=None)
        self._started = self._printed_at = time.monotonic()

    def note(self, note: str) -> None:
        """Show `note` beside the work."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=f"{self._what}: {escape(note)}")
        elif time.monotonic() - self._printed_at >= PLAIN_LINE_EACH_S:
            self._printed_at = time.monotonic()
            self._show.line(f"  {self._what}: {self._printed_at - self._started:.0f} s, {note}")


class Show:
    """The demo's output on one console."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._started = time.monotonic()

    def step(self, text: str) -> None:
        """Begin a new part of the demo, with the time since its start."""
        seconds = f"{time.monotonic() - self._started:6.1f} s"
        self.console.print(f"[bold cyan]{seconds}[/]  [bold]{escape(text)}[/]", soft_wrap=True)

    def line(self, text: str) -> None:
        """Print a plain line below a step."""
        self.console.print(f"          {escape(text)}", soft_wrap=True)

    def table(self, table: RenderableType) -> None:
        """Print a table. In a pipe it is as wide as it needs to be."""
        if self.console.is_terminal:
            self.console.print(table)
            return
        with (wide := Console(width=TABLE_WIDTH, highlight=False)).capture() as captured:
            wide.print(table)
        lines = (line.rstrip() for line in captured.get().rstrip("\n").split("\n"))
        self.console.out("\n".join(lines), highlight=False)

    def outcome(self, text: str, *, good: bool) -> None:
        """Print the last line."""
        self.console.print(f"[bold {'green' if good else 'red'}]{escape(text)}[/]", soft_wrap=True)

    @contextmanager
    def bar(self, what: str, total: int) -> Iterator[Bar]:
        """A progress bar for the length of a `with`."""
        if not self.console.is_terminal:
            yield Bar(self, what, total, None)
            return
        columns = (
            TextColumn("          {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console, transient=True) as progress:
            yield Bar(self, what, total, progress)

    @contextmanager
    def waiting(self, what: str) -> Iterator[Spinner]:
        """The time and a note for the length of a `with`."""
        if not self.console.is_terminal:
            yield Spinner(self, what, None)
            return
        columns = (
            TextColumn("         "),
            SpinnerColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
        )
        with Progress(*columns, console=self.console, transient=True) as progress:
            yield Spinner(self, what, progress)
