"""The process of one node on its machine: it stalls, the machine sleeps, the disk hangs."""

from tests.simulation.world.machine import Machine
from tests.simulation.world.world import Life, Standstill, World


class SimulatedProcess:
    """A node over all its incarnations. Its disk and its machine outlive them.

    life: the newest incarnation, which a subclass replaces at a start.
    """

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.life = Life(name, alive=False)
        self.machine = Machine(world)
        self._world = world
        self._disk_hang = Standstill()  # it outlasts a restart

    @property
    def alive(self) -> bool:
        return self.life.alive

    @property
    def is_stalled(self) -> bool:
        return self.life.stall.until_us > self._world.now_us

    @property
    def has_healthy_disk(self) -> bool:
        return self._disk_hang.until_us <= self._world.now_us

    @property
    def is_at_work(self) -> bool:
        """It runs, is not stalled, and its disk does not hang."""
        return self.alive and not self.is_stalled and self.has_healthy_disk

    def stall(self, lasting_us: int, *, suspended: bool = False) -> None:
        """The process does nothing for so long, and then goes on; suspended: the machine is."""
        self.life.stall.extend(self._world.now_us + lasting_us)
        if suspended:
            self.machine.suspended(lasting_us)
            self.hang_disk(lasting_us)

    def hang_disk(self, lasting_us: int) -> None:
        """No work of the disk ends for so long."""
        self._disk_hang.extend(self._world.now_us + lasting_us)
