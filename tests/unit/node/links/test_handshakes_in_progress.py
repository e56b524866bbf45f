"""Handshakes in progress are bounded, and no flood keeps a node out."""

import random

from app.node.links.handshakes_in_progress import HandshakesInProgress


def test_a_full_room_gives_up_its_oldest() -> None:
    handshakes: HandshakesInProgress[int] = HandshakesInProgress(16)
    assert [handshakes.enter(number, f"10.0.0.{number}") for number in range(16)] == [None] * 16
    assert handshakes.enter(16, "10.0.0.99") == 0
    assert len(handshakes) == 16


def test_an_address_displaces_only_its_own_connections() -> None:
    handshakes: HandshakesInProgress[int] = HandshakesInProgress(64)
    handshakes.enter(-1, "10.0.0.1")
    victims = [handshakes.enter(number, "10.0.0.66") for number in range(100)]
    assert victims == [None] * 16 + list(range(84))
    assert len(handshakes) == 17


def test_a_full_room_gives_up_a_connection_of_the_address_that_holds_most() -> None:
    handshakes: HandshakesInProgress[str] = HandshakesInProgress(8)
    for number in range(6):
        handshakes.enter(f"flood {number}", "10.0.0.66")
    handshakes.enter("n1", "10.0.0.1")
    handshakes.enter("n2", "10.0.0.2")
    assert handshakes.enter("n3", "10.0.0.3") == "flood 0"


def test_a_connection_that_leaves_makes_room_and_may_leave_twice() -> None:
    handshakes: HandshakesInProgress[int] = HandshakesInProgress(1)
    assert handshakes.enter(1, "a") is None
    handshakes.leave(1)
    handshakes.leave(1)
    assert handshakes.enter(2, "b") is None
    assert handshakes.clear() == [2]
    assert len(handshakes) == 0


def test_the_room_never_holds_more_than_its_size() -> None:
    chance = random.Random(7)
    handshakes: HandshakesInProgress[int] = HandshakesInProgress(20)
    inside: set[int] = set()
    for number in range(2_000):
        if inside and chance.random() < 0.3:
            gone = chance.choice(sorted(inside))
            inside.discard(gone)
            handshakes.leave(gone)
        victim = handshakes.enter(number, f"host {chance.randint(0, 5)}")
        inside.add(number)
        if victim is not None:
            inside.remove(victim)
        assert len(handshakes) == len(inside) <= 20
