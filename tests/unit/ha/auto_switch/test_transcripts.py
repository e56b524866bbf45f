"""Whole conversations, as they go over the wire: two replicas exchange frames until both are silent."""

from textwrap import dedent
from typing import Any

import pytest

from app.ha.frames import (
    Ack,
    FrameSplitter,
    Handshake,
    HandshakeAnswer,
    TransferFrame,
    decode_from_master,
    decode_from_slave,
    encode,
)
from app.ha.messages import INCOMING, Disconnect, Drained, Opened
from app.ha.roles import MANAGER, SlaveRole, SyncStateSetUpdate
from app.log.contract import Reset
from tests.unit.ha.lab import REPLICAS, Replicated, copy, new_log, write


class Conversation:
    """A master (n1) and a slave (n2) over one connection after another; `lines` is the transcript."""

    def __init__(self, master: Replicated, slave: Replicated) -> None:
        self.master, self.slave = master, slave
        self.lines: list[str] = []
        self._truncations = 0

    def connect(self, epoch: int) -> None:
        self.slave.deliver(MANAGER, SlaveRole(1, epoch, REPLICAS))
        self.slave.tick()
        self.out = self.slave.dialled()
        self.into = f"{INCOMING}1"
        self.master.deliver(self.into, Opened())
        self._to_slave, self._to_master = FrameSplitter(decode_from_master), FrameSplitter(decode_from_slave)
        self.exchange()

    def exchange(self) -> None:
        while True:
            up, down = self.slave.frames(self.out), self.master.frames(self.into)
            if not (up or down):
                return
            for message in up:
                self._carry("n2->n1", message, self._to_master, self.master, self.into)
            for message in down:
                self._carry("n1->n2", message, self._to_slave, self.slave, self.out)
                self._note_truncation()
            self.master.deliver(self.into, Drained())

    def _carry(self, way: str, message: Any, reader: FrameSplitter, to: Replicated, key: str) -> None:
        self.lines.append(f"{way} {_words(message)}")
        if not isinstance(message, Disconnect):
            for frame in reader.feed(b"".join(encode(message))):
                to.deliver(key, frame)

    def _note_truncation(self) -> None:
        for change in self.slave.truncations[self._truncations :]:
            words = (
                f"starts again at {change.base_index}"
                if isinstance(change, Reset)
                else f"cuts after {change.index}"
            )
            self.lines.append(f"n2 {words}")
        self._truncations = len(self.slave.truncations)

    def expect(self, text: str) -> None:
        assert "\n".join(self.lines) == dedent(text).strip()


def _words(message: Any) -> str:
    match message:
        case Handshake():
            return f"HANDSHAKE {message.address}"
        case HandshakeAnswer():
            epochs = " ".join(f"{each.epoch}@{each.start_offset}" for each in message.epochs)
            return f"EPOCHS epoch={message.epoch} max={message.max_offset} [{epochs}]"
        case TransferFrame():
            end = message.offset + len(message.body)
            start, confirm = message.epoch_start_offset, message.confirm_offset
            return f"TRANSFER {message.offset}..{end} epoch={message.epoch}@{start} confirm={confirm}"
        case Ack():
            return f"ACK {message.max_offset}"
        case _:
            return f"CLOSE {message.reason}"


@pytest.mark.rule("A-02", "A-04", "A-05", "A-06")
def test_a_diverged_slave_is_cut_and_follows_into_the_new_epoch() -> None:
    common = new_log()
    write(common, 1, opened_by="n3")
    write(common, 1, b"both have it")
    ours = copy(common)
    write(ours, 1, b"never confirmed")
    master = Replicated("n1", common)
    master.lead(epoch=2)
    talk = Conversation(master, Replicated("n2", ours))
    talk.connect(epoch=2)
    master.deliver(MANAGER, SyncStateSetUpdate(2, 2, (1, 2)))
    master.append(b"in epoch 2")
    talk.exchange()
    master.tick(20)
    talk.exchange()
    assert [fate for _, fate in master.fates()] == ["acknowledged"]
    talk.expect(
        """
        n2->n1 HANDSHAKE n2:10911
        n1->n2 EPOCHS epoch=2 max=2120 [1@0 2@1408]
        n2 cuts after 1
        n2->n1 ACK 1408
        n1->n2 TRANSFER 1408..2120 epoch=2@1408 confirm=2120
        n2->n1 ACK 2120
        n1->n2 TRANSFER 2120..2816 epoch=2@1408 confirm=2120
        n2->n1 ACK 2816
        n1->n2 TRANSFER 2816..2816 epoch=2@1408 confirm=2816
        """
    )


@pytest.mark.rule("A-02", "A-04")
def test_an_empty_slave_gets_everything_epoch_by_epoch() -> None:
    log = new_log()
    for epoch in (1, 3):
        write(log, epoch, opened_by="n3")
    master = Replicated("n1", log)
    master.lead(epoch=4)
    talk = Conversation(master, Replicated("n2"))
    talk.connect(epoch=4)
    assert talk.slave.log.last_chain == log.last_chain
    talk.expect(
        """
        n2->n1 HANDSHAKE n2:10911
        n1->n2 EPOCHS epoch=4 max=2136 [1@0 3@712 4@1424]
        n2->n1 ACK 0
        n1->n2 TRANSFER 0..712 epoch=1@0 confirm=2136
        n1->n2 TRANSFER 712..1424 epoch=3@712 confirm=2136
        n1->n2 TRANSFER 1424..2136 epoch=4@1424 confirm=2136
        n2->n1 ACK 712
        n2->n1 ACK 1424
        n2->n1 ACK 2136
        """
    )


@pytest.mark.rule("A-04")
def test_a_slave_without_a_common_epoch_starts_again() -> None:
    ours, theirs = new_log(), new_log()
    write(ours, 1, opened_by="n2")
    write(theirs, 2, opened_by="n3")
    master = Replicated("n1", theirs)
    master.lead(epoch=3)
    talk = Conversation(master, Replicated("n2", ours))
    talk.connect(epoch=3)
    talk.expect(
        """
        n2->n1 HANDSHAKE n2:10911
        n1->n2 EPOCHS epoch=3 max=1424 [2@0 3@712]
        n2->n1 ACK 0
        n1->n2 TRANSFER 0..712 epoch=2@0 confirm=1424
        n2 starts again at 0
        n1->n2 TRANSFER 712..1424 epoch=3@712 confirm=1424
        n2->n1 ACK 712
        n2->n1 ACK 1424
        """
    )


@pytest.mark.rule("A-11", "C-10")
def test_a_stale_master_is_left_before_anything_is_taken_from_it() -> None:
    master = Replicated("n1")
    master.lead(epoch=4)
    talk = Conversation(master, Replicated("n2"))
    talk.connect(epoch=5)
    talk.expect(
        """
        n2->n1 HANDSHAKE n2:10911
        n1->n2 EPOCHS epoch=4 max=712 [4@0]
        n2->n1 CLOSE the master is in epoch 4, not 5
        """
    )
