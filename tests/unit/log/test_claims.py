"""The table of idempotency keys against a plain model; its snapshots; its cost, and that of producers."""

import tracemalloc
from random import Random

import pytest

from app.log.claims import HASH_BYTES, PARTITIONS, Claim, KeyTable, key_hash, pack_claim, unpack_claim
from app.log.producers import ProducerTable


def claim(index: int, count: int = 1) -> Claim:
    return Claim(index, index + count - 1, 3, 100 * index, 100 * index + 99, 7, b"d" * 16)


def add(table: KeyTable, key: str, index: int, *, committed: bool = False) -> None:
    table.add(key_hash(key), pack_claim(claim(index)), None if committed else index)


def test_a_packed_claim_is_unpacked() -> None:
    first = Claim(2**62, 2**62 + 9_999, 2**61, 2**60, 2**60 + 2**26, 2**50, bytes(range(16)))
    assert unpack_claim(pack_claim(first)) == first
    assert unpack_claim(b"before" + pack_claim(first), 6) == first


@pytest.mark.parametrize("seed", range(8))
def test_adding_truncating_and_dropping_agree_with_a_plain_list(seed: int) -> None:
    chance, table = Random(seed), KeyTable()
    model: list[tuple[int, str]] = []  # (index, key), in the order of the log
    index = committed = dropped = -1
    for _ in range(200):
        action = chance.random()
        if action < 0.6:
            index += 1
            key = f"k{chance.randrange(60)}"
            add(table, key, index)
            model.append((index, key))
        elif action < 0.75:
            committed = chance.randint(committed, index)
            table.committed(committed)
        elif action < 0.9:
            index = chance.randint(committed, index)
            table.truncate_after(index)
            model = [each for each in model if each[0] <= index]
        else:
            dropped = chance.randint(dropped, committed)
            table.drop_to(dropped, PARTITIONS)
            model = [each for each in model if each[0] > dropped]
        assert len(table) == len(model)
        for key in (f"k{number}" for number in range(60)):
            newest = max((at for at, name in model if name == key), default=None)
            assert table.find(key) == (None if newest is None else claim(newest))
    assert [each[0] for each in table.uncommitted()] == [at for at, _ in model if at > committed]


def test_a_match_across_two_hashes_is_not_a_match(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash that is looked for lies in the middle of two neighbours, and before them."""
    first, wanted = bytes(HASH_BYTES), b"\0\0" + b"ab" * 7
    neighbours = b"\0\0" + b"x" * 6 + wanted[:8], wanted[8:] + b"y" * 8
    table = KeyTable()
    for index, hashed in enumerate((first, wanted)):
        table.add(hashed, pack_claim(claim(index)), None)
    partition = table._partitions[0]
    assert partition is not None
    for index, hashed in enumerate(neighbours, start=2):
        partition.hashes += hashed
        partition.claims += pack_claim(claim(index))
    monkeypatch.setattr("app.log.claims.key_hash", lambda key: wanted)
    assert table.find("any") == claim(1)


def test_a_hash_is_found_before_a_match_that_overlaps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = bytes(HASH_BYTES)
    table = KeyTable()
    for index, hashed in enumerate((wanted, b"\0\0" + b"x" * 14)):
        table.add(hashed, pack_claim(claim(index)), None)
    monkeypatch.setattr("app.log.claims.key_hash", lambda key: wanted)
    assert table.find("any") == claim(0)


def test_partitions_are_dumped_without_what_came_later() -> None:
    table = KeyTable()
    for index in range(2_000):
        add(table, f"k{index}", index, committed=True)
    copy = KeyTable()
    for number in range(PARTITIONS):
        add(table, f"later{number}", 2_000 + number)
        dumped = table.dump(number, 1_999)
        if dumped:
            copy.load(dumped)
    assert len(copy) == 2_000
    assert all(copy.find(f"k{index}") == claim(index) for index in range(2_000))
    with pytest.raises(ValueError, match="is repeated"):
        copy.load(table.dump(key_hash("k0")[0] * 256 % PARTITIONS + key_hash("k0")[1] % 256, 1_999))


@pytest.mark.parametrize("data", [b"", b"\0\0\0", b"\xff\xff\1\0\0\0", b"\0\0\1\0\0\0short"])
def test_noise_is_not_a_partition(data: bytes) -> None:
    with pytest.raises(ValueError, match="snapshot"):
        KeyTable().load(data)


@pytest.mark.parametrize("count", [1_000, 100_000])
def test_producers_that_have_expired_leave_nothing(count: int) -> None:
    """Otherwise each later call of `drop_to`, one in each tick, passes over their places."""
    table = ProducerTable()
    tracemalloc.start()
    try:
        begin, _ = tracemalloc.get_traced_memory()
        for number in range(count):
            table.add(f"p{number}", 0, 0, pack_claim(claim(number)), None)
        while len(table):
            table.drop_to(count, 1_000)
        assert tracemalloc.get_traced_memory()[0] - begin < 4_096
    finally:
        tracemalloc.stop()
    table.add("p", 0, 0, pack_claim(claim(count)), None)
    assert len(table) == 1
