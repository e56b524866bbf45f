"""Handshake that opens a connection between two nodes of one cluster. PURE: nonces are given in.

    dialler -> acceptor   hello       magic(4) size(2) JSON {version, purpose, cluster, from, to, nonce}
    acceptor -> dialler   challenge   size(2) JSON {nonce}
    dialler -> acceptor   proof       size(2) JSON {proof}
    acceptor -> dialler   welcome     size(2) JSON {from, proof}

Sizes are big-endian. The dialler proves first: an acceptor gives an unidentified peer 32 random bytes, and no
proof that a guessed secret could be compared with. Each proof is an HMAC-SHA256 over every message before it,
byte for byte; its key is derived (HKDF-SHA256) from the secret, both nonces and the side that proves, so a
proof fits one connection, one direction and one pair of nodes. The keys of the frames that follow are derived
in the same way (sealed_frames.py).

Without secrets (`secrets` is empty) the messages are the same and the proofs are empty: TLS then proves who
the other side is, and the caller compares its certificate with the name that the handshake returns.

The magic begins with a byte that makes it neither a frame's length at a peer port nor an offset or a state at
an HA port: a node of an earlier version closes the connection at once.
"""

import hashlib
import hmac
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec

MAGIC: Final = b"\xffCLS"
HANDSHAKE_VERSION: Final = 1
NONCE_BYTES: Final = 32
MESSAGE_MAX_BYTES: Final = 2_048  # one message of the handshake, its size not counted
_SIZE: Final = struct.Struct(">H")
_LENGTH: Final = struct.Struct(">I")


class Purpose(StrEnum):
    """Port that a connection is for: a hello for one port is refused at the other."""

    PEER = "peer"
    HA = "ha"


class HandshakeFailed(Exception):
    """The other side has not proved that it belongs to the cluster: close the connection.

    kind: `malformed`, `identity` (another cluster, port or node), or `proof`, for the metrics.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


class _Hello(msgspec.Struct, frozen=True):
    version: int
    purpose: str
    cluster: str
    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    nonce: bytes


class _Challenge(msgspec.Struct, frozen=True):
    nonce: bytes


class _Proof(msgspec.Struct, frozen=True):
    proof: str  # hexadecimal; empty without a secret


class _Welcome(msgspec.Struct, frozen=True):
    source: str = msgspec.field(name="from")
    proof: str


@dataclass(frozen=True, slots=True)
class Identity:
    """Name of this node in the handshakes of one of its ports."""

    cluster: str
    node_id: str
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class Session:
    """Result of a handshake. send_key, receive_key: of the frames each way; None without a secret.

    peer_id: id of the node at the other end; with a secret it is proved, without one the caller must compare
    it with the certificate. rest: bytes that arrived after the handshake.
    """

    peer_id: str
    send_key: bytes | None
    receive_key: bytes | None
    rest: bytes


class _Side:
    """Buffer and transcript that both sides have. The buffer holds at most one feed and one message."""

    def __init__(self, identity: Identity, nonce: bytes) -> None:
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce has {NONCE_BYTES} bytes, got {len(nonce)}")
        self._identity = identity
        self._nonce = nonce
        self._nonces = b""  # of the dialler, then of the acceptor
        self._transcript: list[bytes] = []
        self._buffer = b""
        self.session: Session | None = None

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the other side; return those to send to it. `session` is set once both have proved.

        Raises HandshakeFailed.
        """
        self._buffer += data
        answers = b""
        while self.session is None and (message := self._cut()) is not None:
            answers += self._step(message)
        return answers

    def _cut(self) -> bytes | None:
        """Remove and return the first message of the buffer; None while it is partial."""
        if len(self._buffer) < _SIZE.size:
            return None
        (size,) = _SIZE.unpack_from(self._buffer)
        if not 0 < size <= MESSAGE_MAX_BYTES:
            raise HandshakeFailed("malformed", f"a message of {size} bytes in the handshake")
        end = _SIZE.size + size
        if len(self._buffer) < end:
            return None
        message, self._buffer = self._buffer[_SIZE.size : end], self._buffer[end:]
        return message

    def _step(self, message: bytes) -> bytes:
        raise NotImplementedError

    def _end(self, peer_id: str, secret: bytes | None, *, dials: bool) -> None:
        rest, self._buffer = self._buffer, b""
        if secret is None:
            self.session = Session(peer_id, None, None, rest)
            return
        outward = self._derive(secret, b"frames of the dialler")
        inward = self._derive(secret, b"frames of the acceptor")
        keys = (outward, inward) if dials else (inward, outward)
        self.session = Session(peer_id, *keys, rest)

    def _proof(self, secret: bytes | None, side: bytes) -> str:
        """Proof of one side over the messages so far; empty without a secret."""
        if secret is None:
            return ""
        key = self._derive(secret, b"proof of the " + side)
        return hmac.digest(key, _joined(self._transcript), "sha256").hex()

    def _derive(self, secret: bytes, label: bytes) -> bytes:
        """HKDF-SHA256, one block (RFC 5869): salt are both nonces, info the label and the messages so far."""
        extracted = hmac.digest(self._nonces, secret, "sha256")
        info = b"commitlog link 1: " + label + hashlib.sha256(_joined(self._transcript)).digest()
        return hmac.digest(extracted, info + b"\x01", "sha256")


class DiallerHandshake(_Side):
    """Side that opened the connection. Send `hello` first, then what `feed` returns."""

    def __init__(self, identity: Identity, target: str, secret: bytes | None, nonce: bytes) -> None:
        """target: id of the node that must answer; empty: any other node of the cluster (HA)."""
        super().__init__(identity, nonce)
        self._target = target
        self._secret = secret
        hello = _Hello(HANDSHAKE_VERSION, identity.purpose, identity.cluster, identity.node_id, target, nonce)
        self._transcript = [msgspec.json.encode(hello)]
        self.hello = MAGIC + _framed(self._transcript[0])

    def _step(self, message: bytes) -> bytes:
        if not self._nonces:
            challenge = _decoded(message, _Challenge)
            _check_nonce(challenge.nonce)
            self._nonces = self._nonce + challenge.nonce
            self._transcript.append(message)
            proof = msgspec.json.encode(_Proof(self._proof(self._secret, b"dialler")))
            self._transcript.append(proof)
            return _framed(proof)
        welcome = _decoded(message, _Welcome)
        self._transcript.append(welcome.source.encode())
        if not _equal(self._proof(self._secret, b"acceptor"), welcome.proof):
            raise HandshakeFailed("proof", "the acceptor has another cluster secret")
        if welcome.source == self._identity.node_id or self._target not in ("", welcome.source):
            raise HandshakeFailed("identity", f"{welcome.source} answered, not {self._target}")
        self._end(welcome.source, self._secret, dials=True)
        return b""


class AcceptorHandshake(_Side):
    """Side that accepted the connection. Feed it the bytes after the magic."""

    def __init__(self, identity: Identity, secrets: tuple[bytes, ...], nonce: bytes) -> None:
        """secrets: all that a dialler may prove; empty: proofs are empty too."""
        super().__init__(identity, nonce)
        self._secrets: tuple[bytes | None, ...] = secrets or (None,)
        self._source = ""

    def _step(self, message: bytes) -> bytes:
        if not self._nonces:
            hello = _decoded(message, _Hello)
            self._check(hello)
            self._source = hello.source
            self._nonces = hello.nonce + self._nonce
            challenge = msgspec.json.encode(_Challenge(self._nonce))
            self._transcript = [message, challenge]
            return _framed(challenge)
        proof = _decoded(message, _Proof)
        secret = self._proved(proof.proof)
        self._transcript += [message, self._identity.node_id.encode()]
        welcome = msgspec.json.encode(_Welcome(self._identity.node_id, self._proof(secret, b"acceptor")))
        self._end(self._source, secret, dials=False)
        return _framed(welcome)

    def _check(self, hello: _Hello) -> None:
        own = self._identity
        _check_nonce(hello.nonce)
        if hello.version != HANDSHAKE_VERSION:
            raise HandshakeFailed(
                "identity", f"handshake version {hello.version}, this node has {HANDSHAKE_VERSION}"
            )
        if hello.cluster != own.cluster:
            raise HandshakeFailed("identity", "a node of another cluster")
        if hello.purpose != own.purpose:
            raise HandshakeFailed("identity", f"a connection for the port {hello.purpose!r}")
        if hello.target not in ("", own.node_id):
            raise HandshakeFailed("identity", f"a connection to {hello.target!r}, this is {own.node_id}")
        if not hello.source or hello.source == own.node_id:
            raise HandshakeFailed("identity", f"{hello.source!r} is not another node")

    def _proved(self, proof: str) -> bytes | None:
        """Return the secret that the dialler has proved. All are compared, whichever fits."""
        found = [secret for secret in self._secrets if _equal(self._proof(secret, b"dialler"), proof)]
        if not found:
            raise HandshakeFailed("proof", f"{self._source} has not proved the cluster secret")
        return found[0]


def _framed(message: bytes) -> bytes:
    return _SIZE.pack(len(message)) + message


def _joined(messages: list[bytes]) -> bytes:
    """The messages with their lengths, so that no two lists give the same bytes."""
    return b"".join(_LENGTH.pack(len(message)) + message for message in messages)


def _equal(expected: str, proof: str) -> bool:
    """Compare in a time that does not depend on where the proofs differ."""
    return hmac.compare_digest(expected.encode(), proof.encode())


def _check_nonce(nonce: bytes) -> None:
    if len(nonce) != NONCE_BYTES:
        raise HandshakeFailed("malformed", f"a nonce of {len(nonce)} bytes")


def _decoded(message: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(message, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise HandshakeFailed("malformed", f"not a {kind.__name__.strip('_').lower()}") from None
