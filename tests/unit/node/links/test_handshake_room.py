"""The room for connections that have proved nothing: bounded, and no flood keeps a node out."""

import random

from app.node.links.handshake_room import HandshakeRoom


def test_a_full_room_gives_up_its_oldest() -> None:
    room: HandshakeRoom[int] = HandshakeRoom(16)
    assert [room.enter(number, f"10.0.0.{number}") for number in range(16)] == [None] * 16
    assert room.enter(16, "10.0.0.99") == 0
    assert len(room) == 16


def test_an_address_displaces_only_its_own_connections() -> None:
    room: HandshakeRoom[int] = HandshakeRoom(64)
    room.enter(-1, "10.0.0.1")
    victims = [room.enter(number, "10.0.0.66") for number in range(100)]
    assert victims == [None] * 16 + list(range(84))
    assert len(room) == 17


def test_a_full_room_gives_up_a_connection_of_the_address_that_holds_most() -> None:
    room: HandshakeRoom[str] = HandshakeRoom(8)
    for number in range(6):
        room.enter(f"flood {number}", "10.0.0.66")
    room.enter("n1", "10.0.0.1")
    room.enter("n2", "10.0.0.2")
    assert room.enter("n3", "10.0.0.3") == "flood 0"


def test_a_connection_that_leaves_makes_room_and_may_leave_twice() -> None:
    room: HandshakeRoom[int] = HandshakeRoom(1)
    assert room.enter(1, "a") is None
    room.leave(1)
    room.leave(1)
    assert room.enter(2, "b") is None
    assert room.clear() == [2]
    assert len(room) == 0


def test_the_room_never_holds_more_than_its_size() -> None:
    chance = random.Random(7)
    room: HandshakeRoom[int] = HandshakeRoom(20)
    inside: set[int] = set()
    for number in range(2_000):
        if inside and chance.random() < 0.3:
            gone = chance.choice(sorted(inside))
            inside.discard(gone)
            room.leave(gone)
        victim = room.enter(number, f"host {chance.randint(0, 5)}")
        inside.add(number)
        if victim is not None:
            inside.remove(victim)
        assert len(room) == len(inside) <= 20
