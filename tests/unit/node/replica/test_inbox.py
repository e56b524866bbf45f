"""The queue of a log's messages: bounded by number and bytes, what must not be lost is never dropped."""

import asyncio
from pathlib import Path
from typing import Any

from app.ha.frames import ClassicReport, Preface, TransferFrame, encode, encode_preface
from app.ha.messages import Closed, Opened
from app.log.contract import NO_INDEX
from app.node.links.handshake import Identity, Purpose
from app.node.links.links import Links
from app.node.network.ha_connection import Protocol
from app.node.network.ha_transport import HaTransport
from app.node.replica.inbox import MESSAGES_MAX, Inbox
from app.raft.messages import Heartbeat, PushRequest, PushType, VoteRequest
from tests.unit.node.replica.driver_support import follower_of_n2
from tests.unit.raft.support import MemoryLog


def push(size_bytes: int) -> PushRequest:
    batch = MemoryLog().add(1, value=bytes(size_bytes))
    return PushRequest(1, PushType.APPEND, "n2", NO_INDEX, 1, 1, NO_INDEX, 0, 0, False, False, (batch,))


def test_messages_beyond_the_bounds_are_dropped_and_votes_pass_when_pushes_have_used_up_the_bytes() -> None:
    inbox = Inbox(messages_max=5, bytes_max=10_000)
    assert [inbox.put("n2", push(4_000)) for _ in range(4)] == [True, True, False, False]
    assert not inbox.is_full
    assert [inbox.put("n2", VoteRequest(2, 0, 0)) for _ in range(4)] == [True, True, True, False]
    assert (len(inbox), inbox.dropped, inbox.is_full) == (5, 3, True)
    assert isinstance(inbox.take()[1], PushRequest)
    assert inbox.put("n2", push(4_000))
    while inbox:
        inbox.take()
    assert inbox.put("n2", push(50_000))  # one message always finds room


def test_nothing_of_a_connection_between_master_and_slave_is_dropped() -> None:
    inbox = Inbox(messages_max=9, bytes_max=9_000, read_bytes_max=1_000)
    frames = [
        Opened(1),
        TransferFrame(0, 1, 0, 0, bytes(800)),
        TransferFrame(800, 1, 0, 0, bytes(800)),
        Closed("end"),
    ]
    assert [(inbox.put("in-1", frame), inbox.is_full) for frame in frames] == [
        (True, False),
        (True, False),
        (True, True),  # its transport stops to read
        (True, True),
    ]
    assert [inbox.take()[1] for _ in frames] == frames
    assert (inbox.dropped, inbox.is_full) == (0, False)


def test_a_driver_whose_disk_hangs_holds_a_bounded_number_of_messages(tmp_path: Path) -> None:
    node, _ = follower_of_n2(tmp_path)
    node.driver.deliver("n3", VoteRequest(9, NO_INDEX, 0, transfer=True))
    while node.seams.soon:  # all but the disk
        node.seams.turn()
    for number in range(MESSAGES_MAX + 500):
        node.driver.deliver("n3", Heartbeat(9, "n3", NO_INDEX, number))
        node.seams.turn()
    assert node.driver.dropped_messages == 500
    assert not node.driver.takes_more
    node.seams.run()
    assert node.driver.takes_more
    assert (node.driver.term, node.driver.leader_id) == (9, "n3")


def test_a_connection_is_not_read_while_its_driver_has_too_much_to_do() -> None:
    async def scenario() -> None:
        takes_more: list[bool] = [True]
        came: list[Any] = []
        ha = HaTransport("127.0.0.1:0", Links(Identity("c", "n1", Purpose.HA)))
        await ha.start()
        ha.attach(
            7,
            Protocol.CLASSIC,
            lambda _key, message: came.append(message),
            place=1,
            takes_more=lambda: takes_more[0],
        )
        host, port = ha.address.split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(encode_preface(Preface(7, 2)))

        async def arrived(count: int) -> None:
            async with asyncio.timeout(5):
                while len(came) < count:  # noqa: ASYNC110  # a list has no event
                    await asyncio.sleep(0.001)

        await arrived(1)
        takes_more[0] = False
        writer.writelines(encode(ClassicReport(0)))
        await arrived(2)
        writer.writelines(encode(ClassicReport(0)))
        await asyncio.sleep(0.05)
        assert len(came) == 2
        takes_more[0] = True
        await arrived(3)
        writer.close()
        await ha.stop()

    asyncio.run(scenario())
