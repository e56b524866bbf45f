"""The data folder of a node.

DATA/lock                     held while the node runs: two processes cannot share a folder
DATA/node.json                whose folder it is: cluster and node
DATA/born                     age of this folder relative to the metadata (opening/folder_birth.py)
DATA/logs/NAME/               one log; its files: storage/README.md
DATA/journal/NAME/            what this node has observed of that log
DATA/generations/NAME         which log of that name is kept here (metadata/folders.py)
DATA/receipts/NAME/           records that unclean elections have removed (repair/receipts.py)
DATA/repairing/NAME           the log is damaged, and does not vote (repair/marker.py)
DATA/reserve                  space for what must be written when the disk is full (reserve.py)
"""

from app.node.node_identity import check_stamp
from app.node.reserve import RESERVE_NAME, Reserve, ReservedFiles
from app.settings.model import Settings
from app.telemetry import BUCKETS_S
from storage.file_system import FileSystem, Lock
from storage.files import OsFileSystem
from storage.watched_files import WatchedFiles, WatchedSyncs


class DataFolder:
    """files: of the node; what must be written when the disk is full uses the reserve. syncs: of its files
    that have not returned."""

    def __init__(self, settings: Settings, disk_bytes: int) -> None:
        """disk_bytes: the size of the disk that the folder is on."""
        self.path = str(settings.node.data.absolute())
        self.syncs = WatchedSyncs(BUCKETS_S)
        disk_files = WatchedFiles(OsFileSystem(), self.syncs)
        self.reserve = Reserve(disk_files, f"{self.path}/{RESERVE_NAME}", settings.disk.reserve_bytes)
        self.reserve.fit_to(disk_bytes)
        self.files: FileSystem = ReservedFiles(disk_files, self.reserve)
        self._settings = settings
        self._lock: Lock | None = None

    def claim(self) -> None:
        """Create the folder if it does not exist, and lock it for this node. Blocks.

        Raises ConfigError for the folder of another node or cluster, StorageError, OSError.
        """
        self.files.make_folders(self.path)
        self._lock = self.files.lock(f"{self.path}/lock")
        check_stamp(self.files, f"{self.path}/node.json", self._settings.cluster_id, self._settings.node.id)
        self.reserve.restore()

    def release(self) -> None:
        """Unlock the folder: another process may claim it."""
        if self._lock is not None:
            self._lock.release()
