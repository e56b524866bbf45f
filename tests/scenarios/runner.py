"""Runs a transcript: commands, a line `----`, and their results, block by block.

    log NAME TERM...        what a member holds at the start: a batch of one record for each term
    elect NAME by NAMES     NAME asks, NAMES answer, until it leads; messages to the others stay on their way
    append NAME [COUNT]     a client's append of COUNT records
    deliver A->B            everything that is on its way from A to B arrives
    lose A->B               ... does not
    swap A->B               ... will arrive in the opposite order
    tick NAME MS            time passes, and NAME notices it; the others hear from their leader
    alone NAME              NAME notices the time that has passed; its messages are not delivered yet
    run MS [NAMES]          time passes for all, or for NAMES, which hear each other at once
    hold NAME / sync NAME   NAME's disk stops to sync by itself / syncs once
    restart NAME            NAME comes back with what was durable; `wipe NAME`: with nothing
    read NAME TOKEN         a linearizable read
    show                    every member: role, term, log by terms, committed index, last durable index

Heartbeats are delivered with the rest but not printed.
"""

import re
from collections.abc import Callable
from pathlib import Path

from app.log.contract import NO_INDEX
from app.raft.messages import (
    Heartbeat,
    HeartbeatAnswer,
    PushAnswer,
    PushRequest,
    PushType,
    RaftMessage,
    ReadIndexAnswer,
    ReadIndexRequest,
    VoteAnswer,
    VoteRequest,
)
from storage.log.hard_state import HardState
from tests.unit.raft.support import Group, MemoryLog, log_of

FOLDER = Path(__file__).parent
RULE = re.compile(r"[A-Z]-\d\d")


def scenario_files() -> list[Path]:
    return sorted(FOLDER.glob("*.txt"))


def rules_of(text: str) -> list[str]:
    """The rules named in the comment on top."""
    return RULE.findall(text.partition("\n")[0])


def replay(text: str) -> str:
    """Return the transcript with the output that its commands lead to now."""
    scenario = Scenario()
    lines: list[str] = []
    blocks = text.strip().split("\n\n")
    for block in blocks:
        commands = block.partition("\n----")[0].split("\n")
        output: list[str] = []
        for command in commands:
            if command and not command.startswith("#"):
                output += scenario.do(command)
        lines += [*commands, *(["----", *output] if "----" in block else []), ""]
    return "\n".join(lines)


class Scenario:
    """One group of members and its network, driven by commands."""

    def __init__(self) -> None:
        self._logs: dict[str, MemoryLog] = {"n1": MemoryLog(), "n2": MemoryLog(), "n3": MemoryLog()}
        self._group: Group | None = None
        self._seen = 0
        self._commands: dict[str, Callable[..., list[str]]] = {
            "log": self._log,
            "elect": self._elect,
            "append": self._append,
            "deliver": self._deliver,
            "lose": self._lose,
            "swap": self._swap,
            "tick": self._tick,
            "alone": self._alone,
            "run": self._run,
            "hold": self._hold,
            "sync": self._sync,
            "restart": self._restart,
            "wipe": self._wipe,
            "read": self._read,
            "show": self._show,
        }

    @property
    def group(self) -> Group:
        if self._group is None:
            self._group = Group(self._logs)
        return self._group

    def do(self, line: str) -> list[str]:
        name, *arguments = line.split()
        return self._commands[name](*arguments)

    def _log(self, name: str, *terms: str) -> list[str]:
        self._logs[name] = log_of(*map(int, terms))
        return []

    def _elect(self, name: str, _by: str, *names: str) -> list[str]:
        member = self.group.elect(name, name, *names)
        return [f"{name} leads term {member.core.term}", *self._on_the_way()]

    def _append(self, name: str, count: str = "1") -> list[str]:
        batch = self.group[name].append(int(count))
        return [f"{name} appended {batch.base_index}..{batch.last_index}", *self._answers()]

    def _deliver(self, link: str) -> list[str]:
        source, _, target = link.partition("->")
        found = self.group.take(source=source, target=target)
        lines = []
        for message in found:
            before = list(self.group.sent)
            self.group[target].step(source, message)
            lines += self._line(source, target, message)
            for sender, receiver, answer in list(self.group.sent)[len(before) :]:
                lines += ["  " + line for line in self._line(sender, receiver, answer)]
        return [*lines, *self._answers()] or ["nothing"]

    def _lose(self, link: str) -> list[str]:
        source, _, target = link.partition("->")
        lost = self.group.take(source=source, target=target)
        return [f"lost {line}" for message in lost for line in self._line(source, target, message)] or [
            "nothing"
        ]

    def _swap(self, link: str) -> list[str]:
        source, _, target = link.partition("->")
        for message in reversed(self.group.take(source=source, target=target)):
            self.group.send(source, target, message)
        return []

    def _tick(self, name: str, ms: str) -> list[str]:
        group = self.group
        before = len(group.sent)
        group.wait(int(ms))
        core = group[name].core
        if group[name].leads:
            core._peers.heard_ms = dict.fromkeys(core._peers.heard_ms, group.now_ms)
        else:
            core._restart_election_timer(group.now_ms)
        group[name].tick()
        sent = list(group.sent)[before:]
        return [line for each in sent for line in self._line(*each)] + self._answers() or ["nothing"]

    def _alone(self, name: str) -> list[str]:
        before = len(self.group.sent)
        self.group[name].tick()
        return [line for each in list(self.group.sent)[before:] for line in self._line(*each)] or ["nothing"]

    def _run(self, ms: str, *names: str) -> list[str]:
        self.group.pass_time(int(ms), *names)
        return self._answers()

    def _hold(self, name: str) -> list[str]:
        self.group[name].auto_sync = False
        return []

    def _sync(self, name: str) -> list[str]:
        before = len(self.group.sent)
        self.group[name].sync()
        sent = list(self.group.sent)[before:]
        return [line for each in sent for line in self._line(*each)] + self._answers() or ["nothing"]

    def _restart(self, name: str) -> list[str]:
        self.group[name].restart()
        return []

    def _wipe(self, name: str) -> list[str]:
        member = self.group[name]
        member.log = MemoryLog()
        member.saved.append(HardState())
        member.restart()
        return []

    def _read(self, name: str, token: str) -> list[str]:
        member = self.group[name]
        member.core.read_index(token, self.group.now_ms)
        member.run()
        return self._answers()

    def _show(self) -> list[str]:
        lines = []
        for member in self.group.members.values():
            core, log = member.core, member.log
            terms = " ".join(map(str, log.terms)) or "empty"
            committed = "none" if core.committed_index == NO_INDEX else core.committed_index
            begin = f" begin={log.begin_index}" if log.begin_index > 0 else ""
            lines.append(
                f"{member.name} {core.role} term={core.term} log={terms}{begin} committed={committed}"
            )
        return lines

    def _answers(self) -> list[str]:
        """Clients that have been answered since the last look."""
        lines = []
        for member in self.group.members.values():
            lines += [f"{member.name} answers append {token}: {fate}" for token, fate in member.answers]
            lines += [f"{member.name} answers read {token}: {index}" for token, index in member.reads]
            member.answers.clear()
            member.reads.clear()
        return lines

    def _on_the_way(self) -> list[str]:
        return [f"on its way: {line}" for each in self.group.sent for line in self._line(*each)]

    def _line(self, source: str, target: str, message: RaftMessage) -> list[str]:
        words = describe(message)
        return [f"{source}->{target} {words}"] if words else []


def describe(message: RaftMessage) -> str:
    """One line for a message, "" for a heartbeat and its answer."""
    if isinstance(message, Heartbeat | HeartbeatAnswer):
        return ""
    if isinstance(message, PushRequest):
        return _describe_push(message)
    if isinstance(message, PushAnswer):
        conflict = f" conflict_term={message.conflict_term} conflict_index={message.conflict_index}"
        return (
            f"{message.type.name} {message.code.name} term={message.term} index={message.index} "
            f"begin={message.begin_index} end={message.end_index}"
            + (conflict if message.conflict_term else "")
        )
    if isinstance(message, VoteRequest):
        name = "PRE_VOTE" if message.pre_vote else "VOTE"
        return f"{name} term={message.term} last_index={message.last_index} last_term={message.last_term}"
    if isinstance(message, VoteAnswer):
        name = "PRE_VOTE" if message.pre_vote else "VOTE"
        return f"{name} {'GRANTED' if message.granted else 'REFUSED'} term={message.term}"
    if isinstance(message, ReadIndexRequest):
        return f"READ_INDEX term={message.term}"
    if isinstance(message, ReadIndexAnswer):
        return f"READ_INDEX ANSWER term={message.term} index={message.index}"
    raise TypeError(f"no words for {message!r}")


def _describe_push(push: PushRequest) -> str:
    words = f"{push.type.name} term={push.term}"
    if push.type is PushType.APPEND:
        words += f" records={push.batches[0].base_index}..{push.batches[-1].last_index}"
        words += f" behind={push.index}/{push.index_term}"
    elif push.type is PushType.TRUNCATE:
        words += f" index={push.truncate_index}" + (" reset" if push.reset else "")
    else:
        words += f" index={push.index}/{push.index_term}"
    return f"{words} committed={push.committed_index}"
