"""Move a log that cannot be repaired into a folder beside it, so that an empty one can begin."""

from typing import Final

from storage.file_system import FileSystem, write_durably
from storage.format.segment_format import index_offset, segment_offset
from storage.log.log_folder import EPOCHS_NAME, MANIFEST_NAME

ASIDE_FOLDER: Final = "aside"
_WHOLE: Final = "whole"  # marker in that folder: the move is complete


def set_aside(files: FileSystem, folder: str) -> str:
    """Move the log's own files into its folder `aside`, replacing an older set; return that folder.

    The vote stays, and so do files that are not part of the log. The manifest is moved last: after a crash
    the log is still damaged, and is set aside again. Durable on return.
    """
    aside = f"{folder}/{ASIDE_FOLDER}"
    files.make_folders(aside)
    if _WHOLE in files.list(aside):
        for name in [name for name in files.list(aside) if name != _WHOLE]:
            files.remove(f"{aside}/{name}")
        files.sync_folder(aside)
        files.remove(f"{aside}/{_WHOLE}")
    names = [name for name in files.list(folder) if segment_offset(name) is not None]
    names += [name for name in files.list(folder) if index_offset(name) is not None]
    names += [name for name in (EPOCHS_NAME, "state", "checkpoint") if files.exists(f"{folder}/{name}")]
    for name in names:
        files.rename(f"{folder}/{name}", f"{aside}/{name}")
    files.sync_folder(aside)
    files.sync_folder(folder)
    if files.exists(f"{folder}/{MANIFEST_NAME}"):
        files.rename(f"{folder}/{MANIFEST_NAME}", f"{aside}/{MANIFEST_NAME}")
    write_durably(files, f"{aside}/{_WHOLE}", b"")
    files.sync_folder(folder)
    return aside
