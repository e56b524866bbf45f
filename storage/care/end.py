"""Earlier end of a damaged, closed log: its group never committed what is damaged (see survey.py)."""

from dataclasses import replace

from storage.care.survey import Damage
from storage.errors import PatchRefused
from storage.file_system import FileSystem, write_durably
from storage.format.segment_format import segment_name, segment_offset
from storage.log.aside import ASIDE_FOLDER
from storage.log.log_folder import MANIFEST_NAME
from storage.log.manifest import Intent, ManifestFile


def end_before(files: FileSystem, folder: str, damage: Damage) -> None:
    """Let the log end before the damage. This is durable on return; recovery removes what follows.

    Raises PatchRefused if nothing of the log is before it: nothing was written; CorruptFile, DiskError.
    """
    manifest_file = ManifestFile(files, f"{folder}/{MANIFEST_NAME}")
    manifest = manifest_file.load()
    offset = damage.first_offset
    if manifest is None or offset <= manifest.base_offset:
        raise PatchRefused(f"nothing of the log is before offset {offset}")
    if offset < manifest.durable_offset:
        manifest = replace(manifest, durable_index=damage.first_index - 1, durable_offset=offset)
    manifest_file.save(replace(manifest, intent=Intent.TRUNCATE, truncate_offset=offset))


def copy_end(files: FileSystem, folder: str, damage: Damage) -> None:
    """Copy the log from the damage on into its folder `aside`, for the operator, as segments. Durable on
    return. Raises DiskError."""
    aside, offset = f"{folder}/{ASIDE_FOLDER}", damage.first_offset
    files.make_folders(aside)
    begins = [(begin, name) for name in files.list(folder) if (begin := segment_offset(name)) is not None]
    held = max((begin for begin, _ in begins if begin <= offset), default=offset)
    for begin, name in begins:
        if begin >= held:
            data = files.read(f"{folder}/{name}")[max(0, offset - begin) :]
            write_durably(files, f"{aside}/{segment_name(max(begin, offset))}", data)
