"""Trust in the folder of a Raft replica when it opens: a doubt is saved before the folder is used.

The note (repair/marker.py) is outside the log's folder and stays until the replica is sound again, so a crash
at any moment changes nothing. The reasons are

- an empty folder: its disk may have been replaced, and what it acknowledged and voted is lost. At the first
  start of a group all folders are empty; then the votes of all end the doubt (app/raft/doubt.py).
- a copy of a folder that was put in its place (storage/log/origin.py): what the replica acknowledged and
  voted after the copy was made is lost. When a whole cluster is restored, the votes of all end the doubt.
- a log that acknowledges before it syncs (`replicated`), after a power failure: its end may be lost.
"""

import logging
from dataclasses import dataclass

from app.log.driver_interfaces import Clock
from app.node.repair.marker import Note, RepairMarker
from storage.log.clean_stop import CleanStop

logger = logging.getLogger(__name__)

_EMPTY = "the folder is empty: the replica is new, or its disk has been replaced"
_COPY = "the folder is a copy: it may be older than what this replica acknowledged or voted"
_POWER = "the power failed before the last acknowledged records were synced"


@dataclass(frozen=True, slots=True)
class Trust:
    """Trust in a replica when it opens.

    sound: nothing that was acknowledged or voted may be missing. sound_if_alone: it is sound if the log
    names no other voter. knows_vote: term and vote are the last that were given. may_lack_vote: a missing
    vote file is not damage.
    """

    sound: bool
    sound_if_alone: bool
    knows_vote: bool
    may_lack_vote: bool = False


def judge_opening(
    log_name: str,
    marker: RepairMarker,
    clean_stop: CleanStop,
    clock: Clock,
    *,
    sound: bool,
    sound_if_alone: bool,
    is_empty: bool,
    is_copy: bool = False,
    is_alone: bool = False,
) -> Trust:
    """Return how far the replica is to be trusted; the reason of a doubt is durable on return. Blocks.

    sound, sound_if_alone: what the caller knows. is_empty: no file of the log, its vote or its journal is
    there, and there may have been one before. is_copy: the folder is a copy. is_alone: the configuration
    names no other voter. Raises DiskError.
    """
    trust = _as_noted(marker, sound, sound_if_alone)
    is_empty = is_empty and trust.sound
    power = clean_stop.may_have_lost()
    if not (is_empty or is_copy or power):
        return trust
    lacks_records = is_empty or (is_copy and not is_alone)
    lost_vote = is_empty or is_copy
    reason = _EMPTY if is_empty else _COPY if is_copy else _POWER
    logger.warning("log opens without a vote", extra={"log": log_name, "reason": reason})
    note = Note(
        reason,
        "start",
        clock.now_ms(),
        keeps_promises=False,
        lacks_records=lacks_records,
        intact=True,
        lost_vote=lost_vote,
    )
    marker.save(note)
    return Trust(
        sound=False,
        sound_if_alone=not lacks_records and (trust.sound or trust.sound_if_alone),
        knows_vote=trust.knows_vote and not lost_vote,
    )


def _as_noted(marker: RepairMarker, sound: bool, sound_if_alone: bool) -> Trust:
    if not marker.exists:
        return Trust(sound, sound_if_alone, knows_vote=True)
    alone = sound_if_alone or (marker.intact and not marker.lacks_records)
    return Trust(sound and marker.keeps_promises, alone, not marker.lost_vote)
