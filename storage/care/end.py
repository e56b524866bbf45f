"""Earlier end of a damaged, closed log: its group never committed what is damaged (see survey.py)."""

from dataclasses import replace

from storage.care.survey import Damage
from storage.errors import DiskError, PatchRefused
from storage.file_system import FileSystem
from storage.format.segment_format import segment_name
from storage.log.aside import ASIDE_FOLDER
from storage.log.log_folder import MANIFEST_NAME, copy_segment, segment_offsets
from storage.log.manifest import Intent, Manifest, ManifestFile


def end_before(files: FileSystem, folder: str, damage: Damage) -> DiskError | None:
    """Let the log end before the damage. This is durable on return; recovery removes what follows, of which
    the folder `aside` gets a copy. Return the error if the disk refused that copy.

    Raises PatchRefused if nothing of the log is before it: nothing was written; CorruptFile, DiskError.
    """
    manifest_file = ManifestFile(files, f"{folder}/{MANIFEST_NAME}")
    manifest = manifest_file.load()
    offset = damage.first_offset
    if manifest is None or offset <= manifest.base_offset:
        raise PatchRefused(f"nothing of the log is before offset {offset}")
    refused = None
    try:
        copy_end(files, folder, offset)
    except DiskError as error:
        refused = error
    manifest = durable_before(manifest, damage)
    manifest_file.save(replace(manifest, intent=Intent.TRUNCATE, truncate_offset=offset))
    return refused


def durable_before(manifest: Manifest, damage: Damage) -> Manifest:
    """Return the manifest of a log that is durable at most up to the damage."""
    if damage.first_offset >= manifest.durable_offset:
        return manifest
    return replace(manifest, durable_index=damage.first_index - 1, durable_offset=damage.first_offset)


def copy_end(files: FileSystem, folder: str, offset: int) -> None:
    """Copy the log from `offset` on into its folder `aside`, for the operator, as segments. Durable on
    return. Raises DiskError."""
    aside = f"{folder}/{ASIDE_FOLDER}"
    files.make_folders(aside)
    begins = segment_offsets(files, folder)
    held = max((begin for begin in begins if begin <= offset), default=offset)
    for begin in begins:
        if begin >= held:
            target = f"{aside}/{segment_name(max(begin, offset))}"
            copy_segment(files, f"{folder}/{segment_name(begin)}", target, max(0, offset - begin))
