"""A master under test: slaves that join it and acknowledge, a controller that grants sets."""

from app.ha.frames import Ack, Handshake
from app.ha.roles import MANAGER, SyncStateSetUpdate
from tests.unit.ha.lab import Lab, Replicated

SLOW = 400  # more than a heartbeat, less than falling out


def join(
    master: Lab, node: str = "n2", number: int = 1, *, at: int | None = None, learner: bool = False
) -> str:
    """A slave that holds everything up to byte `at` (all) is in TRANSFER; return its key."""
    key = master.connected(number)
    master.deliver(key, Handshake(f"{node}:10911", is_learner=learner))
    master.deliver(key, Ack(master.log.end_offset if at is None else at))
    return key


def ack_all(master: Lab, key: str) -> None:
    master.deliver(key, Ack(master.log.end_offset))


def grant(master: Replicated, members: tuple[int, ...]) -> None:
    """The controller answers a request with a newer set."""
    status = master.core.status()
    request = master.core.set_request
    epoch = 1 if request is None else request.sync_state_set_epoch
    master.deliver(MANAGER, SyncStateSetUpdate(status.epoch, epoch + 1, members))


def in_sync_with_n2() -> tuple[Replicated, str]:
    """n1 is master, the set is {n1, n2}."""
    master = Replicated()
    master.lead()
    key = join(master)
    assert master.wanted_set == (1, 2)
    grant(master, (1, 2))
    assert master.wanted_set is None
    master.take()
    return master, key
