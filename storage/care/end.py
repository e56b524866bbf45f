"""Earlier end of a damaged, closed log: its group never committed what is damaged (see survey.py)."""

from dataclasses import replace

from storage.care.survey import Damage
from storage.errors import PatchRefused
from storage.file_system import FileSystem
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
