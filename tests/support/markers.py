"""Removal of a doubt's note as a node does it when its replica is sound again."""

from typing import Any

from app.node.repair.marker import RepairMarker
from app.node.services import NodeServices, ReplicaEvents
from storage.errors import StorageFull


def removes_marker(services: NodeServices, log_name: str) -> ReplicaEvents:
    """Return events of a replica whose note is removed, in its disk's lane, when it is healed."""
    marker = RepairMarker(services.files, services.data_folder, log_name)

    def removed(_result: Any, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, StorageFull):
            services.fail(f"log {log_name}: note of a doubt", error)

    return ReplicaEvents(healed=lambda: services.disk.lane(log_name).submit(marker.remove, removed))
