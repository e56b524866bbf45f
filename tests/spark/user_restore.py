"""RESTORE of a table in a local folder, as the commit that Spark writes: in milliseconds, not seconds."""

import json
from pathlib import Path
from typing import Any

from app.tables.delta_log import LOG_FOLDER, DeltaLog

Action = dict[str, Any]


def restore(table: Path, version: int) -> None:
    """Do as `RESTORE TABLE table TO VERSION AS OF version`. No commit of the table's history is missing."""
    newest = DeltaLog(str(table)).versions()[-1]
    now, then = Content(table, newest), Content(table, version)
    info = {
        "timestamp": now.timestamp_ms + 1,
        "inCommitTimestamp": now.timestamp_ms + 1,
        "operation": "RESTORE",
        "operationParameters": {"version": version, "timestamp": None},
        "readVersion": newest,
        "isolationLevel": "Serializable",
        "isBlindAppend": False,
    }
    added = [{**file, "dataChange": True} for path, file in then.files.items() if path not in now.files]
    gone = {"deletionTimestamp": now.timestamp_ms + 1, "dataChange": True, "extendedFileMetadata": True}
    removed = [
        {**gone, **{key: file[key] for key in ("path", "partitionValues", "size", "stats") if key in file}}
        for path, file in now.files.items()
        if path not in then.files
    ]
    actions: list[Action] = [{"commitInfo": info}, {"metaData": then.metadata}]
    actions += [{"add": file} for file in added] + [{"remove": file} for file in removed]
    actions += [{"domainMetadata": domain} for domain in then.domains.values()]
    actions += [{"protocol": now.protocol}]
    commit_path(table, newest + 1).write_text("".join(f"{json.dumps(action)}\n" for action in actions))


class Content:
    """Files, columns and settings of a table at a version."""

    def __init__(self, table: Path, version: int) -> None:
        self.files: dict[str, Action] = {}
        self.domains: dict[str, Action] = {}
        self.metadata: Action = {}
        self.protocol: Action = {}
        self.timestamp_ms = 0
        for each in range(version + 1):
            for action in actions_of(table, each):
                self._apply(action)

    def _apply(self, action: Action) -> None:
        [(kind, content)] = action.items()
        if kind == "add":
            self.files[content["path"]] = content
        elif kind == "remove":
            self.files.pop(content["path"], None)
        elif kind == "domainMetadata":
            self.domains[content["domain"]] = content
        elif kind == "metaData":
            self.metadata = content
        elif kind == "protocol":
            self.protocol = content
        elif kind == "commitInfo":
            self.timestamp_ms = content.get("timestamp", self.timestamp_ms)


def actions_of(table: Path, version: int) -> list[Action]:
    return [json.loads(line) for line in commit_path(table, version).read_text().splitlines()]


def commit_path(table: Path, version: int) -> Path:
    return table / LOG_FOLDER / f"{version:020d}.json"
