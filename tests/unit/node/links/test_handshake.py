"""The handshake between nodes: both sides prove the secret, and nothing else ends in a session."""

import contextlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from app.node.links.handshake import (
    MAGIC,
    MESSAGE_MAX_BYTES,
    AcceptorHandshake,
    DiallerHandshake,
    HandshakeFailed,
    Identity,
    Purpose,
    Session,
)

OLD, NEW = b"the old secret, 32 bytes of noise", b"the new secret, 32 bytes of noise"
N1 = Identity("orders", "n1", Purpose.PEER)
N2 = Identity("orders", "n2", Purpose.PEER)


def nonce(number: int) -> bytes:
    return bytes([number]) * 32


def dialler(
    identity: Identity = N1, target: str = "n2", secret: bytes | None = OLD, number: int = 1
) -> DiallerHandshake:
    return DiallerHandshake(identity, target, secret, nonce(number))


def acceptor(
    identity: Identity = N2, secrets: tuple[bytes, ...] = (OLD,), number: int = 2
) -> AcceptorHandshake:
    return AcceptorHandshake(identity, secrets, nonce(number))


def shake(
    dials: DiallerHandshake,
    accepts: AcceptorHandshake,
    change: Callable[[int, bytes], bytes] = lambda number, message: message,
) -> list[bytes]:
    """Pass the messages between both sides, each through change(number, message); return those sent."""
    sent = [dials.hello]
    to_acceptor = change(0, dials.hello)[len(MAGIC) :]
    number = 1
    while to_acceptor:
        back = accepts.feed(to_acceptor)
        sent.append(back)
        if not back:
            break
        to_acceptor = dials.feed(change(number, back))
        sent.append(to_acceptor)
        if to_acceptor:
            to_acceptor = change(number + 1, to_acceptor)
        number += 2
    return sent


def sessions(dials: DiallerHandshake, accepts: AcceptorHandshake) -> tuple[Session, Session]:
    shake(dials, accepts)
    assert dials.session is not None
    assert accepts.session is not None
    return dials.session, accepts.session


def test_both_sides_know_each_other_and_have_the_same_keys_crosswise() -> None:
    ours, theirs = sessions(dialler(), acceptor())
    assert (ours.peer_id, theirs.peer_id) == ("n2", "n1")
    assert ours.send_key is not None
    assert ours.send_key == theirs.receive_key
    assert ours.receive_key == theirs.send_key
    assert ours.send_key != ours.receive_key


def test_any_nonce_gives_other_keys() -> None:
    keys = {sessions(dialler(number=a), acceptor(number=b))[0].send_key for a in (1, 3) for b in (2, 4)}
    assert len(keys) == 4


def test_a_node_of_any_name_answers_a_dialler_that_names_none() -> None:
    ours, _ = sessions(dialler(target=""), acceptor())
    assert ours.peer_id == "n2"


@pytest.mark.parametrize("secret", [OLD, NEW])
def test_every_secret_of_the_acceptor_is_taken(secret: bytes) -> None:
    ours, theirs = sessions(dialler(secret=secret), acceptor(secrets=(NEW, OLD)))
    assert ours.send_key == theirs.receive_key


@pytest.mark.parametrize(
    ("secret", "secrets"), [(OLD, (NEW,)), (None, (NEW,)), (OLD, ()), (b"", (NEW,)), (OLD[:-1], (OLD,))]
)
def test_another_secret_is_refused_before_the_acceptor_has_proved_anything(
    secret: bytes | None, secrets: tuple[bytes, ...]
) -> None:
    dials, accepts = dialler(secret=secret), acceptor(secrets=secrets)
    challenge = accepts.feed(dials.hello[len(MAGIC) :])
    proof = dials.feed(challenge)
    with pytest.raises(HandshakeFailed) as failed:
        accepts.feed(proof)
    assert failed.value.kind == "proof"
    assert accepts.session is None
    assert dials.session is None


def test_without_secrets_the_names_are_exchanged_and_there_are_no_keys() -> None:
    ours, theirs = sessions(dialler(secret=None), acceptor(secrets=()))
    assert (ours.peer_id, theirs.peer_id) == ("n2", "n1")
    assert (ours.send_key, ours.receive_key, theirs.send_key, theirs.receive_key) == (None,) * 4


def test_an_acceptor_without_the_secret_is_refused() -> None:
    for proof in ("", "00" * 32, "é"):
        dials = dialler()
        assert dials.feed(acceptor(secrets=(NEW,)).feed(dials.hello[len(MAGIC) :]))
        welcome = f'{{"from":"n2","proof":"{proof}"}}'.encode()
        with pytest.raises(HandshakeFailed, match="another cluster secret"):
            dials.feed(len(welcome).to_bytes(2, "big") + welcome)
        assert dials.session is None


def test_a_replayed_dialler_is_refused() -> None:
    """Everything that a dialler sent once, sent again: the acceptor's nonce is another one."""
    dials = dialler()
    hello, _, proof, *_ = shake(dials, acceptor())
    again = acceptor(number=9)
    again.feed(hello[len(MAGIC) :])
    with pytest.raises(HandshakeFailed, match="not proved"):
        again.feed(proof)


def test_a_replayed_acceptor_is_refused() -> None:
    _, challenge, _, welcome, *_ = shake(dialler(), acceptor())
    dials = dialler(number=9)
    dials.feed(challenge)
    with pytest.raises(HandshakeFailed, match="another cluster secret"):
        dials.feed(welcome)


def test_a_reflected_proof_is_refused() -> None:
    """The dialler's own proof does not prove the acceptor."""
    dials = dialler()
    proof = dials.feed(acceptor().feed(dials.hello[len(MAGIC) :]))
    reflected = b'{"from":"n2",' + proof[2:][1:]
    with pytest.raises(HandshakeFailed, match="another cluster secret"):
        dials.feed(len(reflected).to_bytes(2, "big") + reflected)


def test_a_node_does_not_take_its_own_hello() -> None:
    with pytest.raises(HandshakeFailed, match="not another node"):
        acceptor(identity=N1).feed(dialler(target="").hello[len(MAGIC) :])


@pytest.mark.parametrize(
    ("own", "target"),
    [
        (replace(N1, cluster="other"), "n2"),
        (replace(N1, purpose=Purpose.HA), "n2"),
        (replace(N1, node_id=""), "n2"),
        (replace(N1, node_id="n2"), ""),
        (N1, "n3"),
    ],
)
def test_a_hello_for_another_cluster_port_or_node_gets_no_answer(own: Identity, target: str) -> None:
    with pytest.raises(HandshakeFailed) as failed:
        acceptor().feed(dialler(own, target).hello[len(MAGIC) :])
    assert failed.value.kind == "identity"


def test_a_dialler_refuses_a_member_that_it_did_not_call() -> None:
    """n3 has the secret, but the connection was meant for n2: it cannot even take the hello as its own."""
    dials = dialler(target="n2")
    n3 = acceptor(identity=replace(N2, node_id="n3"))
    n3._check = lambda hello: None  # type: ignore[method-assign]  # a member that breaks the rules
    with pytest.raises(HandshakeFailed, match="n3 answered, not n2"):
        shake(dials, n3)
    assert dials.session is None


@pytest.mark.parametrize("which", range(4))
def test_every_flipped_bit_is_found(which: int) -> None:
    """In the hello, the challenge, the proof and the welcome; the magic is the listener's matter."""
    sent = shake(dialler(), acceptor())
    first = len(MAGIC) if which == 0 else 0
    for place in range(first * 8, len(sent[which]) * 8):

        def flip(number: int, message: bytes, place: int = place) -> bytes:
            if number != which:
                return message
            changed = bytearray(message)
            changed[place // 8] ^= 1 << place % 8
            return bytes(changed)

        dials, accepts = dialler(), acceptor()
        with contextlib.suppress(HandshakeFailed):
            shake(dials, accepts, flip)
        assert dials.session is None, f"bit {place} of message {which}"
        if which < 3:
            assert accepts.session is None, f"bit {place} of message {which}"


@pytest.mark.parametrize("which", range(4))
def test_a_truncated_message_waits_for_its_end(which: int) -> None:
    sent = shake(dialler(), acceptor())
    for size in range(len(MAGIC) if which == 0 else 0, len(sent[which])):

        def truncate(number: int, message: bytes, size: int = size) -> bytes:
            return message[:size] if number == which else message

        dials, accepts = dialler(), acceptor()
        shake(dials, accepts, truncate)
        assert dials.session is None


def test_bytes_may_arrive_one_by_one_and_the_rest_is_kept() -> None:
    dials, accepts = dialler(), acceptor()
    to_acceptor, to_dialler = dials.hello[len(MAGIC) :], b""
    for _ in range(2):
        to_dialler = b"".join(accepts.feed(bytes([byte])) for byte in to_acceptor)
        if accepts.session is not None:
            break
        to_acceptor = b"".join(dials.feed(bytes([byte])) for byte in to_dialler)
    dials.feed(to_dialler + b"the first frames")
    assert dials.session is not None
    assert dials.session.rest == b"the first frames"


@pytest.mark.parametrize("size", [0, MESSAGE_MAX_BYTES + 1, 65_535])
def test_a_message_of_an_impossible_size_ends_the_handshake(size: int) -> None:
    with pytest.raises(HandshakeFailed) as failed:
        acceptor().feed(size.to_bytes(2, "big"))
    assert failed.value.kind == "malformed"


@pytest.mark.parametrize(
    "message",
    [b"{}", b"null", b"\xff\xfe", b'{"version":1}', b'{"nonce":""}', b"[" * 2_000, b'{"a":' + b"[" * 2_000],
)
def test_garbage_ends_the_handshake(message: bytes) -> None:
    framed = len(message).to_bytes(2, "big") + message
    with pytest.raises(HandshakeFailed):
        acceptor().feed(framed)
    with pytest.raises(HandshakeFailed):
        dialler().feed(framed)


def test_a_nonce_has_its_size() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        DiallerHandshake(N1, "n2", OLD, b"short")


def test_a_listener_of_an_earlier_version_takes_the_magic_for_nothing_of_its_own() -> None:
    """Not a frame's length at the peer port, and a negative offset or state at the HA port."""
    assert int.from_bytes(MAGIC, "little") > 4_096
    assert int.from_bytes(MAGIC, "big", signed=True) < 0
