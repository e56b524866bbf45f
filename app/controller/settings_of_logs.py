"""Settings of logs that clients choose at the creation and may change later (docs/api.md §5)."""

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from app.controller.commands import Reason, Refused
from app.controller.metadata import LOG_DELETING, PRIORITY_MAX, Log, LogSpec

MODES: Final = ("raft", "controller", "classic")
DURABILITIES: Final = ("fsync", "replicated")
CHANGEABLE: Final = (
    "durability",
    "retention",
    "min_in_sync_replicas",
    "in_sync_replicas",
    "unclean",
    "preferred",
    "priorities",
    "replicas",
    "learners",
)
_NODES: Final = ("replicas", "learners")  # settings that determine which nodes keep the log
FIXED_ROLES: Final = "the replicas of a log in classic mode cannot be changed: create another log"


def complaints_about(spec: LogSpec, brokers: Collection[str]) -> list[tuple[str, str]]:
    """Return the errors of the settings: (JSON pointer, detail). brokers: nodes that may keep logs."""
    complaints = []
    if spec.replication not in MODES:
        detail = f"replication is one of {', '.join(MODES)}, got {spec.replication!r}"
        complaints.append(("/replication", detail))
    if spec.durability not in DURABILITIES:
        detail = f"durability is one of {', '.join(DURABILITIES)}, got {spec.durability!r}"
        complaints.append(("/durability", detail))
    if not spec.replicas:
        complaints.append(("/replicas", "a log needs a replica"))
    twice = [node for node in dict.fromkeys(spec.replicas) if spec.replicas.count(node) > 1]
    if twice:
        complaints.append(("/replicas", f"a replica is named twice: {', '.join(twice)}"))
    unknown = [node for node in spec.replicas if node not in brokers]
    if unknown:
        complaints.append(("/replicas", f"no such nodes: {', '.join(unknown)}"))
    without_copy = [node for node in spec.learners if node not in spec.replicas]
    if without_copy:
        detail = f"learners are replicas of the log; {', '.join(without_copy)} keeps none"
        complaints.append(("/learners", detail))
    voters = [node for node in spec.replicas if node not in spec.learners]
    if spec.replicas and not voters:
        complaints.append(("/learners", "at least one replica must not be a learner"))
    if spec.preferred is not None and spec.preferred not in voters:
        detail = f"preferred is a replica that is not a learner ({', '.join(voters)}), got {spec.preferred!r}"
        complaints.append(("/preferred", detail))
    complaints += _about_priorities(spec)
    complaints += _about_min_in_sync(spec, len(voters))
    complaints += _about_acks(spec, len(voters))
    if spec.replication == "raft" and spec.unclean:
        complaints.append(("/unclean", "unclean is a setting of controller and classic mode"))
    return complaints


def _about_min_in_sync(spec: LogSpec, voters: int) -> list[tuple[str, str]]:
    least = spec.min_in_sync_replicas
    if spec.replication == "raft" and least > 1:
        detail = (
            f"min_in_sync_replicas is a setting of controller and classic mode, got {least}; "
            "Raft waits for a majority"
        )
        return [("/min_in_sync_replicas", detail)]
    if not 1 <= least <= max(1, voters):
        detail = (
            f"min_in_sync_replicas is from 1 to {max(1, voters)}, the number of replicas that are not "
            f"learners, got {least}"
        )
        return [("/min_in_sync_replicas", detail)]
    return []


def _about_priorities(spec: LogSpec) -> list[tuple[str, str]]:
    complaints = []
    if spec.priorities and spec.replication != "controller":
        complaints.append(("/priorities", "priorities are a setting of controller mode"))
    for node, priority in spec.priorities.items():
        if node not in spec.replicas:
            detail = f"{node} keeps no replica of the log"
            complaints.append((f"/priorities/{node}", detail))
        elif not 0 <= priority <= PRIORITY_MAX:
            detail = f"a priority is from 0 to {PRIORITY_MAX}, got {priority}"
            complaints.append((f"/priorities/{node}", detail))
    return complaints


def _about_acks(spec: LogSpec, voters: int) -> list[tuple[str, str]]:
    """Return the complaints about in_sync_replicas.

    It is at least 2: with one holder of a record, only its return or an unclean election could end a failure
    of the master. `acks=leader` is the setting for that.
    """
    acks = spec.in_sync_replicas
    if acks is None:
        return []
    if spec.replication != "controller":
        return [("/in_sync_replicas", f"in_sync_replicas is a setting of controller mode, got {acks}")]
    least = min(2, voters)
    if not least <= acks <= max(least, voters):
        detail = (
            f"in_sync_replicas is from {least} to {voters}, the number of replicas that are not learners; "
            f"null for the whole SyncStateSet, got {acks}"
        )
        return [("/in_sync_replicas", detail)]
    return []


def check_spec(spec: LogSpec, brokers: Collection[str]) -> None:
    """brokers: nodes that may keep logs. Raises Refused(INVALID) with every error."""
    complaints = complaints_about(spec, brokers)
    if complaints:
        raise Refused(Reason.INVALID, "; ".join(detail for _, detail in complaints), complaints)


def check_change(before: LogSpec, after: LogSpec, brokers: Collection[str]) -> None:
    """As check_spec, for the changed settings: older ones are not a reason to refuse others."""
    known = complaints_about(before, brokers)
    complaints = [each for each in complaints_about(after, brokers) if each not in known]
    if complaints:
        raise Refused(Reason.INVALID, "; ".join(detail for _, detail in complaints), complaints)


def complaint_about_version(current: int, required: int | None) -> str | None:
    """Return why a change that requires a version (`If-Match`) must be refused, None if it need not be.

    required: None accepts any. The text has the current version only: for a tag that matches no version,
    `required` is an internal number.
    """
    if required is None or required == current:
        return None
    return f"the settings are at version {current}; the change requires another version"


def check_version(current: int, required: int | None) -> None:
    """Raise Refused with CONFIG_CHANGED if `complaint_about_version` has a complaint."""
    complaint = complaint_about_version(current, required)
    if complaint is not None:
        raise Refused(Reason.CONFIG_CHANGED, complaint)


def changed_spec(log: Log, changes: Mapping[str, Any], version: int | None) -> LogSpec:
    """Return the settings with the changes. Raises Refused."""
    check_usable(log)
    check_version(log.version, version)
    fixed = [name for name in changes if name not in CHANGEABLE]
    if fixed:
        raise Refused(Reason.INVALID, f"cannot be changed: {', '.join(fixed)}")
    return msgspec.structs.replace(log.spec, **whole_changes(log.spec, changes))


def whole_changes(spec: LogSpec, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes, with the consequences of other replicas: a node without a copy is not a learner,
    not preferred, and has no priority. Raises Refused."""
    found = {name: tuple(value) if name in _NODES else value for name, value in changes.items()}
    if not any(name in found for name in _NODES):
        return found
    if spec.replication == "classic":
        raise Refused(Reason.INVALID, FIXED_ROLES)
    replicas = found.get("replicas", spec.replicas)
    learners = found.setdefault("learners", tuple(node for node in spec.learners if node in replicas))
    voters = [node for node in replicas if node not in learners]
    found.setdefault("priorities", {node: each for node, each in spec.priorities.items() if node in voters})
    if spec.preferred not in voters:
        found.setdefault("preferred", None)
    return found


def configured_spec(log: Log, configured: LogSpec, brokers: Collection[str]) -> LogSpec | None:
    """The settings of a log of the configuration file, which has `configured` now; None: they hold already.

    The newest change of each setting holds, whether it was made in the file or by a client. It is checked as
    a client's is; in classic mode the file names the replicas and their roles. Raises Refused.
    """
    before = log.configured or log.spec
    if configured == before:
        return None
    changed = {
        name: value
        for name in LogSpec.__struct_fields__
        if (value := getattr(configured, name)) != getattr(before, name)
    }
    if "replication" in changed:
        detail = f"replication cannot be changed from {before.replication} to {configured.replication}"
        raise Refused(Reason.INVALID, detail)
    whole = changed if log.spec.replication == "classic" else whole_changes(log.spec, changed)
    spec = msgspec.structs.replace(log.spec, **whole)
    check_change(log.spec, spec, (*brokers, *log.spec.replicas))
    return spec


def check_usable(log: Log) -> None:
    """Raise Refused for a log that is being deleted."""
    if log.state == LOG_DELETING:
        raise Refused(Reason.LOG_DELETING, f"log {log.name!r} is being deleted")
