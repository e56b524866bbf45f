"""A round of the active controller: events that are appended together, and the answers that wait for them.
PURE."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from app.controller.commands import AnyCommand, Done, Refusal
from app.controller.events import AnyEvent

Answer = Done | Refusal
MakeLogId = Callable[[str, int], int]  # (name, generation) -> log id
Happen = Callable[..., None]  # (*events): apply them to the state of the round, and append them to it


@dataclass(slots=True)
class Round:
    """Events to be appended at first_index in `term`, and the answers that wait for them."""

    term: int
    first_index: int
    events: list[AnyEvent] = field(default_factory=list)
    answers: list[tuple[Any, Answer]] = field(default_factory=list)
    asked: list[tuple[Any, AnyCommand]] = field(default_factory=list)  # to ask again if nothing was stored

    @property
    def last_index(self) -> int:
        return self.first_index + len(self.events) - 1
