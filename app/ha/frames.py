"""The bytes of AutoSwitch (A-07, A-08) and classic HA (H-02, H-03). PURE. All numbers big-endian.

    slave -> master, AutoSwitch
      handshake       state(4)=1 sync_from_last_file(2) async_learner(2) address_length(4) address(50)
      by number       state(4)=1 sync_from_last_file(2) async_learner(2) replica_number(8)   newer builds
      ack             state(4)=2 max_offset(8)
    master -> slave, AutoSwitch
      answer          state(4)=1 body_size(4) offset(8) epoch(4) body: entries of epoch(4) start_offset(8)
      transfer        state(4)=2 body_size(4) offset(8) epoch(4) epoch_start_offset(8) confirm_offset(8) body
    classic
      report          max_offset(8)                            slave -> master
      frame           offset(8) size(4) body                   master -> slave; size 0: heartbeat
      restart         offset(8) size(4)=-1                     master -> slave that sent its history

    before them, from our own slaves
      preface         magic(4) "CLHA" version(1) flags(1) replica(2) log_id(8)   flags bit 0: by number
      history         end_offset(8) next_index(8) epoch(8) chain(8)    with flags bit 1, directly after it
                    flags bit 0 with a history: records may be missing that the slave has acknowledged
                    flags bit 2: the same; a master of an earlier version refuses it. Bit 0 without bit 2: the
                    history is written for such a master, and the beginning is left out
      begin           begin_index(8)                   with flags bit 3, directly after the history; the same

The preface names the log on a shared listener, and the log's replica that connects. It cannot be
taken for a first frame (no state and no offset begins like that), so a listener of one log does without.

The history proves what a classic report alone cannot: the chain of the slave's last batch is a digest over
every batch before it, so a master that has another chain there has another log. The restart frame answers a
slave whose log ends before the master's log begins: the frames after it start at the master's beginning.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from app.ha.roles import ADDRESS_MAX_BYTES
from storage.units import MIB

TRANSFER_MAX_BYTES: Final = 4 * MIB  # of one frame's body; ours are far smaller (H-06)
EPOCHS_MAX: Final = 1_000_000  # of one handshake's answer

PREFACE_MAGIC: Final = b"CLHA"
PREFACE_VERSION: Final = 1
FLAG_BY_NUMBER: Final = 1
FLAG_HISTORY: Final = 2
FLAG_DOUBT: Final = 4
FLAG_BEGIN: Final = 8
FLAGS: Final = FLAG_BY_NUMBER | FLAG_HISTORY | FLAG_DOUBT | FLAG_BEGIN
RESTART_SIZE: Final = -1  # in the size field of a classic frame

PREFACE: Final = struct.Struct(">4sBBHQ")
HISTORY: Final = struct.Struct(">qqq8s")
BEGIN: Final = struct.Struct(">q")
HANDSHAKE: Final = struct.Struct(">ihhi50s")
HANDSHAKE_BY_NUMBER: Final = struct.Struct(">ihhq")
ANSWER: Final = struct.Struct(">iiqi")
ENTRY: Final = struct.Struct(">iq")
TRANSFER: Final = struct.Struct(">iiqiqq")
ACK: Final = struct.Struct(">iq")
REPORT: Final = struct.Struct(">q")
CLASSIC: Final = struct.Struct(">qi")
_STATE: Final = struct.Struct(">i")

Buffer = bytes | memoryview


class CorruptHaFrame(Exception):
    """Bytes that are not a valid frame: the connection is closed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class HaState(IntEnum):
    """State of a connection (A-02), and the first field of every AutoSwitch frame."""

    READY = 0
    HANDSHAKE = 1
    TRANSFER = 2


@dataclass(frozen=True, slots=True)
class History:
    """Proof of what a classic slave holds. end_offset: byte after its last batch, 0 for an empty log.

    next_index: index after its last record. epoch: of that record, 0 for none. chain: of its last batch, 8
    bytes (storage/format/batch.py). in_doubt: records may be missing that the slave has acknowledged.
    for_earlier: written for masters of earlier versions, which know of neither: they ignore the doubt and get
    no begin_index; others take in_doubt from it. begin_index: of a log that lacks earlier records which no
    trim has removed, as far as it knows; 0 for any other.
    """

    end_offset: int
    next_index: int
    epoch: int
    chain: bytes
    in_doubt: bool = False
    for_earlier: bool = False
    begin_index: int = 0


@dataclass(frozen=True, slots=True)
class Preface:
    """The log of a connection. replica: the slave's place among the log's, from 1; 0 unknown. by_number: of
    AutoSwitch, which sends no history."""

    log_id: int
    replica: int = 0
    by_number: bool = False
    history: History | None = None


@dataclass(frozen=True, slots=True)
class Handshake:
    """Identification of a slave: by its address, or (number > 0) by its replica id."""

    address: str
    sync_from_last_file: bool = False
    is_learner: bool = False
    number: int = 0


@dataclass(frozen=True, slots=True)
class EpochStart:
    """Beginning of an epoch in the wire format."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class HandshakeAnswer:
    """The master's epochs, oldest first, and the end of its log."""

    max_offset: int
    epoch: int
    epochs: tuple[EpochStart, ...]


@dataclass(frozen=True, slots=True)
class TransferFrame:
    """Bytes of the master's log, all of one epoch (A-05); an empty body is a heartbeat."""

    offset: int
    epoch: int
    epoch_start_offset: int
    confirm_offset: int
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Ack:
    """The slave holds everything below max_offset; its first one determines where the transfer starts."""

    max_offset: int


@dataclass(frozen=True, slots=True)
class ClassicReport:
    """The same in classic HA."""

    max_offset: int


@dataclass(frozen=True, slots=True)
class ClassicFrame:
    """Bytes of the master's log; an empty body is a heartbeat.

    restart: the master has trimmed everything below `offset`, the slave's log included; no body.
    """

    offset: int
    body: bytes = b""
    restart: bool = False


Frame = Handshake | HandshakeAnswer | TransferFrame | Ack | ClassicReport | ClassicFrame


def encode_preface(preface: Preface) -> bytes:
    """Return its 16 bytes, 32 more with a history, and 8 more with the beginning of its log."""
    history = preface.history
    flags = FLAG_BY_NUMBER if preface.by_number else 0
    if history is not None:
        flags = FLAG_HISTORY
        if history.in_doubt or history.for_earlier:
            flags |= FLAG_BY_NUMBER
        if history.in_doubt and not history.for_earlier:
            flags |= FLAG_DOUBT
        if history.begin_index and not history.for_earlier:
            flags |= FLAG_BEGIN
    data = PREFACE.pack(PREFACE_MAGIC, PREFACE_VERSION, flags, preface.replica, preface.log_id)
    if history is None:
        return data
    data += HISTORY.pack(history.end_offset, history.next_index, history.epoch, history.chain)
    return data + BEGIN.pack(history.begin_index) if flags & FLAG_BEGIN else data


def encode(frame: Frame) -> tuple[Buffer, ...]:
    """Return the frame's bytes as buffers to be written one after the other.

    Raises ValueError for an address that is too long (A-07) and struct.error for numbers out of range.
    """
    match frame:
        case TransferFrame(offset, epoch, start, confirm, body):
            return (TRANSFER.pack(HaState.TRANSFER, len(body), offset, epoch, start, confirm), body)
        case Ack(max_offset):
            return (ACK.pack(HaState.TRANSFER, max_offset),)
        case ClassicFrame(offset, _, True):
            return (CLASSIC.pack(offset, RESTART_SIZE),)
        case ClassicFrame(offset, body):
            return (CLASSIC.pack(offset, len(body)), body)
        case ClassicReport(max_offset):
            return (REPORT.pack(max_offset),)
        case HandshakeAnswer(max_offset, epoch, epochs):
            entries = b"".join(ENTRY.pack(entry.epoch, entry.start_offset) for entry in epochs)
            return (ANSWER.pack(HaState.HANDSHAKE, len(entries), max_offset, epoch), entries)
        case Handshake():
            return (_encode_handshake(frame),)


def _encode_handshake(frame: Handshake) -> bytes:
    flags = (int(frame.sync_from_last_file), int(frame.is_learner))
    if frame.number:
        return HANDSHAKE_BY_NUMBER.pack(HaState.HANDSHAKE, *flags, frame.number)
    address = frame.address.encode()
    if not 0 < len(address) <= ADDRESS_MAX_BYTES:
        raise ValueError(f"the handshake has room for an address of 1 to {ADDRESS_MAX_BYTES} bytes")
    return HANDSHAKE.pack(HaState.HANDSHAKE, *flags, len(address), address)


# --- decoding ---------------------------------------------------------------------------------------------

Decode = Callable[[memoryview], tuple[Any, int] | None]
"""Return the first frame of the bytes and its size, None while it is partial. Raises CorruptHaFrame."""


class FrameSplitter:
    """Splits a stream of bytes into frames (H-03): partial ones wait, several may arrive at once.

    The buffer is reused: decoded bytes leave it, so that it never holds more than one partial frame and the
    last read. `decode` limits a frame as soon as its fixed part has arrived.
    """

    __slots__ = ("_buffer", "_decode")

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._buffer = bytearray()

    @property
    def waiting_bytes(self) -> int:
        """Number of bytes of the partial frame."""
        return len(self._buffer)

    def feed(self, data: Buffer) -> list[Any]:
        """Return the frames that `data` completes. Raises CorruptHaFrame: the stream is unreadable from
        there."""
        buffer = self._buffer
        buffer += data
        frames = []
        at = 0
        with memoryview(buffer) as view:
            while at < len(buffer):
                with view[at:] as rest:
                    found = self._decode(rest)
                if found is None:
                    break
                frame, size = found
                frames.append(frame)
                at += size
        del buffer[:at]
        return frames


def decode_preface(view: memoryview) -> tuple[Preface, int] | None:
    """Decode the first bytes of a connection to a shared listener; garbage is recognized by its first
    byte."""
    if bytes(view[:4]) != PREFACE_MAGIC[: len(view)]:
        raise CorruptHaFrame("no preface")
    if len(view) < PREFACE.size:
        return None
    _, version, flags, replica, log_id = PREFACE.unpack_from(view)
    if version != PREFACE_VERSION or flags & ~FLAGS:
        raise CorruptHaFrame(f"preface version {version} flags {flags}")
    if not flags & FLAG_HISTORY:
        return Preface(log_id, replica, bool(flags & FLAG_BY_NUMBER)), PREFACE.size
    begin_at = PREFACE.size + HISTORY.size
    size = begin_at + (BEGIN.size if flags & FLAG_BEGIN else 0)
    if len(view) < size:
        return None
    end_offset, next_index, epoch, chain = HISTORY.unpack_from(view, PREFACE.size)
    if end_offset < 0 or next_index < 0 or epoch < 0:
        raise CorruptHaFrame(f"a history that ends at {end_offset}, index {next_index}, epoch {epoch}")
    (begin_index,) = BEGIN.unpack_from(view, begin_at) if flags & FLAG_BEGIN else (0,)
    if not 0 <= begin_index <= next_index:
        raise CorruptHaFrame(f"a history from index {begin_index} to {next_index}")
    in_doubt, has_flag = bool(flags & (FLAG_BY_NUMBER | FLAG_DOUBT)), bool(flags & FLAG_DOUBT)
    for_earlier = in_doubt and not has_flag
    history = History(end_offset, next_index, epoch, chain, in_doubt, for_earlier, begin_index)
    return Preface(log_id, replica, history=history), size


def decode_from_slave(view: memoryview) -> tuple[Handshake | Ack, int] | None:
    """Decode for a master, the seed's handshake (A-07)."""
    return _decode_from_slave(view, by_number=False)


def decode_from_slave_by_number(view: memoryview) -> tuple[Handshake | Ack, int] | None:
    """Decode for a master from newer builds, whose handshake has 16 bytes."""
    return _decode_from_slave(view, by_number=True)


def _decode_from_slave(view: memoryview, *, by_number: bool) -> tuple[Handshake | Ack, int] | None:
    state = _state_of(view)
    if state is None:
        return None
    if state == HaState.TRANSFER:
        if len(view) < ACK.size:
            return None
        return Ack(_offset("ack", ACK.unpack_from(view)[1])), ACK.size
    if state != HaState.HANDSHAKE:
        raise CorruptHaFrame(f"state {state} from a slave")
    layout = HANDSHAKE_BY_NUMBER if by_number else HANDSHAKE
    if len(view) < layout.size:
        return None
    _, last_file, learner, *name = layout.unpack_from(view)
    if last_file not in (0, 1) or learner not in (0, 1):
        raise CorruptHaFrame(f"handshake flags {last_file} {learner}")
    if by_number:
        if name[0] < 1:
            raise CorruptHaFrame(f"replica number {name[0]}")
        return Handshake("", bool(last_file), bool(learner), name[0]), layout.size
    length, padded = name
    if not 0 < length <= ADDRESS_MAX_BYTES:
        raise CorruptHaFrame(f"an address of {length} bytes")
    try:
        address = padded[:length].decode("ascii")
    except UnicodeDecodeError as error:
        raise CorruptHaFrame("an address that is not ASCII") from error
    return Handshake(address, bool(last_file), bool(learner)), layout.size


def decode_from_master(view: memoryview) -> tuple[HandshakeAnswer | TransferFrame, int] | None:
    """Decode for an AutoSwitch slave."""
    state = _state_of(view)
    if state is None:
        return None
    if state == HaState.TRANSFER:
        return _decode_transfer(view)
    if state == HaState.HANDSHAKE:
        return _decode_answer(view)
    raise CorruptHaFrame(f"state {state} from a master")


def _decode_transfer(view: memoryview) -> tuple[TransferFrame, int] | None:
    if len(view) < TRANSFER.size:
        return None
    _, size, offset, epoch, start, confirm = TRANSFER.unpack_from(view)
    _check_size(size, TRANSFER_MAX_BYTES)
    _offset("transfer", offset)
    if epoch < 1 or not 0 <= start <= offset or confirm < 0:
        raise CorruptHaFrame(f"transfer of epoch {epoch} from {start}, confirmed {confirm}")
    end = TRANSFER.size + size
    if len(view) < end:
        return None
    return TransferFrame(offset, epoch, start, confirm, bytes(view[TRANSFER.size : end])), end


def _decode_answer(view: memoryview) -> tuple[HandshakeAnswer, int] | None:
    if len(view) < ANSWER.size:
        return None
    _, size, max_offset, epoch = ANSWER.unpack_from(view)
    _check_size(size, EPOCHS_MAX * ENTRY.size)
    _offset("handshake", max_offset)
    if size % ENTRY.size or epoch < 1:
        raise CorruptHaFrame(f"handshake of epoch {epoch} with a body of {size} bytes")
    end = ANSWER.size + size
    if len(view) < end:
        return None
    epochs = tuple(EpochStart(*entry) for entry in ENTRY.iter_unpack(view[ANSWER.size : end]))
    last = EpochStart(0, 0)
    for entry in epochs:
        if entry.epoch <= last.epoch or entry.start_offset < last.start_offset:
            raise CorruptHaFrame(f"epoch {entry.epoch} at {entry.start_offset} follows {last.epoch}")
        last = entry
    if last.start_offset > max_offset or last.epoch > epoch:
        raise CorruptHaFrame(f"epoch {last.epoch} at {last.start_offset} lies past the log's end")
    return HandshakeAnswer(max_offset, epoch, epochs), end


def decode_report(view: memoryview) -> tuple[ClassicReport, int] | None:
    """Decode for a classic master (H-02)."""
    if len(view) < REPORT.size:
        return None
    return ClassicReport(_offset("report", REPORT.unpack_from(view)[0])), REPORT.size


def decode_classic(view: memoryview) -> tuple[ClassicFrame, int] | None:
    """Decode for a classic slave (H-03)."""
    if len(view) < CLASSIC.size:
        return None
    offset, size = CLASSIC.unpack_from(view)
    _offset("frame", offset)
    if size == RESTART_SIZE:
        return ClassicFrame(offset, restart=True), CLASSIC.size
    _check_size(size, TRANSFER_MAX_BYTES)
    end = CLASSIC.size + size
    if len(view) < end:
        return None
    return ClassicFrame(offset, bytes(view[CLASSIC.size : end])), end


def _state_of(view: memoryview) -> int | None:
    return None if len(view) < _STATE.size else int(_STATE.unpack_from(view)[0])


def _offset(what: str, offset: int) -> int:
    if offset < 0:
        raise CorruptHaFrame(f"{what} with offset {offset}")
    return offset


def _check_size(size: int, max_bytes: int) -> None:
    if not 0 <= size <= max_bytes:
        raise CorruptHaFrame(f"a body of {size} bytes")
