"""One log at this node: its settings, the driver if the node keeps a replica, and its leader."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

from app.errors import ChangeInProgress, CommitlogError, LogDeleting, NoLeader, Repairing
from app.futures import settle
from app.log.contract import GroupConfig, Role
from app.node.replica.driver import LogDriver
from app.settings.model import LogSettings, Replication
from storage.log.journal import Journal

if TYPE_CHECKING:
    from app.ha.auto_switch.core import AutoSwitchCore
    from app.node.repair.interfaces import RepairResult
    from app.node.repair.log_repair import LogRepair
    from app.node.repair.rollbacks import RunningRollback

REPLACED_GRACE_S: Final = 0.2
CONFIGURED: Final = -1  # the generation of a log of the configuration file


class HostedLog:
    """A configured log. `driver` is None at a node without a replica, and during a repair; `journal` is
    None only without a replica, or until that could be opened. Owned by the event loop."""

    def __init__(self, settings: LogSettings, log_id: int) -> None:
        self.settings = settings
        self.name = settings.name
        self.log_id = log_id
        self.driver: LogDriver | None = None
        self.journal: Journal | None = None
        self.is_opening = False  # a thread opens the replica
        self.repair: LogRepair | None = None  # in progress; the log is not served meanwhile
        self.rollback: RunningRollback | None = None  # in progress; the log is not served meanwhile
        self.repair_result: RepairResult | None = None  # by the last repair, until the replica is sound
        self.generation = CONFIGURED  # distinguishes logs of the same name (app/controller/metadata.py)
        self.deleting = False  # by the metadata: the log is not served any more
        self.in_doubt = False  # it may lack what it acknowledged, and has no vote until it is sound
        self.repairs_begun = 0
        self.scrub_rounds = 0  # ended since the start of the node
        self.scrubbed_bytes = 0
        self.caught_up = False  # a linearizable read has succeeded here since the start
        self.ha: AutoSwitchCore | None = None  # of a log in controller mode, with its driver
        self._members_change = False  # a call is changing the members of this Raft log
        self._seen: tuple[Role, str | None, int] | None = None
        self._group: GroupConfig | None = None  # that an open replica has known
        self._watchers: dict[asyncio.Future[None], None] = {}
        self._led_by: dict[asyncio.Timeout, str] = {}  # calls that wait for an answer of that leader

    @contextmanager
    def changing_members(self) -> Iterator[None]:
        """Keep other calls from changing the members: two with different aims would undo each other's steps.

        Raises ChangeInProgress while another call changes them.
        """
        if self._members_change:
            raise ChangeInProgress
        self._members_change = True
        try:
            yield
        finally:
            self._members_change = False

    def opened(self, driver: LogDriver) -> None:
        """The replica is open: apply the changes made since its opening began."""
        self.driver = driver
        driver.change_options(self.settings.options)

    def take_settings(self, settings: LogSettings) -> None:
        """Adopt changed settings. An open replica adopts those that may change while it runs."""
        before, self.settings = self.settings, settings
        if self.driver is not None and settings.options != before.options:
            self.driver.change_options(settings.options)

    def release_files(self) -> bool:
        """Return whether no opening, repair or rollback uses the files of the log; ask the latter two to end:
        the log is to be removed."""
        users = [user for user in (self.repair, self.rollback) if user is not None]
        for user in users:
            user.give_up()
        return not users and not self.is_opening

    @property
    def repairing(self) -> bool:
        """True from the first sign of damage until the replica is sound."""
        return self.repair is not None or self.in_doubt

    @property
    def leader_id(self) -> str | None:
        return None if self.driver is None else self.driver.leader_id

    @property
    def has_leader(self) -> bool:
        """Return whether a leader is known here. A master without a lease is none: it accepts nothing."""
        if self.ha is not None and self.ha.role is Role.MASTER:
            return self.ha.accepts_appends
        return self.leader_id is not None

    @property
    def group(self) -> GroupConfig:
        """The newest group known here, otherwise that of the configuration. In controller and classic mode
        the settings name the replicas."""
        if self.settings.replication is not Replication.RAFT:
            return GroupConfig(voters=self.settings.replicas)
        if self.driver is not None:
            self._group = self.driver.group
        return self._group or GroupConfig(voters=self.settings.replicas)

    @property
    def knows_group(self) -> bool:
        """True if `group` is that of the log, because it was open once since the start."""
        return self._group is not None or self.driver is not None

    @property
    def voters(self) -> tuple[str, ...]:
        return self.group.voters

    @property
    def members(self) -> tuple[str, ...]:
        """Voters and learners."""
        return self.group.members

    @property
    def removed(self) -> bool:
        """True if this node's replica is outside the log's group (R-10)."""
        return self.driver is not None and self.driver.role is Role.REMOVED

    @property
    def serving(self) -> LogDriver | None:
        """The driver, if calls about the log may be answered here; a removed replica only forwards them."""
        return None if self.removed else self.driver

    @property
    def no_leader(self) -> NoLeader:
        """The refusal while no leader is known here. It states what the log needs."""
        status = f"`commitlog status --log {self.name}`"
        if self.settings.replication is Replication.CONTROLLER:
            return NoLeader(
                "no master with a lease is known: a majority of the controllers must run, and members of its "
                f"SyncStateSet. {status} shows which replicas answer, that of __controller which controllers"
            )
        if self.settings.replication is Replication.CLASSIC:
            return NoLeader(
                f"the master does not accept calls: {status} shows whether it runs, `commitlog ha-status "
                f"--log {self.name}` for which replicas it waits"
            )
        voters = ", ".join(self.voters)
        if not self.in_doubt:
            return NoLeader(
                f"no leader is known: a majority of the voters {voters} must run and reach one another. "
                f"{status} shows which of them answer"
            )
        return NoLeader(
            "no leader is known, and the replica of this node has no vote yet: it is new, or it may have "
            "lost what it acknowledged. A new log elects its first leader when the configurations of its "
            "nodes name the same voters, and all of its voters run: " + voters
        )

    @property
    def interrupted(self) -> CommitlogError:
        """The refusal of a call that had begun before this node stopped serving its replica."""
        return LogDeleting(self.name) if self.deleting else Repairing()

    def answering(self, here: str) -> list[str]:
        """Return the other nodes that may answer for the log, the best first. here: this node."""
        named = (self.leader_id, *self.members, *self.settings.replicas)
        return [node for node in dict.fromkeys(named) if node is not None and node != here]

    @property
    def leads(self) -> bool:
        return self.driver is not None and self.driver.role in (Role.LEADER, Role.MASTER)

    def wake_on_change(self) -> None:
        """Wake callers that wait for a change of leadership; the node's timer calls this."""
        driver = self.driver
        if driver is None:
            return
        seen = (driver.role, driver.leader_id, driver.term)
        if seen != self._seen:
            self._seen = seen
            self.wake()
            for limit, leader in self._led_by.items():
                # Only once: a limit that has expired cannot be moved, and no further change gives more time.
                if limit.when() is None and driver.leader_id not in (None, leader):
                    limit.reschedule(asyncio.get_running_loop().time() + REPLACED_GRACE_S)

    def wake(self) -> None:
        watchers, self._watchers = self._watchers, {}
        for watcher in watchers:
            settle(watcher, None)

    @asynccontextmanager
    async def while_led_by(self, leader: str) -> AsyncIterator[None]:
        """Raise TimeoutError in the `with` soon after this node has learnt of a leader other than `leader`.

        A leader that is frozen or partitioned does not answer; one that still can has a grace period.
        """
        async with asyncio.timeout(None) as limit:
            self._led_by[limit] = leader
            try:
                yield
            finally:
                del self._led_by[limit]

    async def leadership_changed(self, timeout_s: float) -> None:
        """Wait until role, leader or term change, at most `timeout_s`."""
        watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers[watcher] = None
        try:
            async with asyncio.timeout(timeout_s):
                await watcher
        except TimeoutError:
            pass
        finally:
            self._watchers.pop(watcher, None)
