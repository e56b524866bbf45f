"""Later beginning of a damaged, closed log: every replica has trimmed what is before it (see survey.py)."""

from dataclasses import replace

from storage.errors import CorruptBatch, PatchRefused
from storage.file_system import FileSystem
from storage.format.batch import Batch, decode_batch
from storage.log.log_folder import MANIFEST_NAME
from storage.log.manifest import ManifestFile


def begin_with(files: FileSystem, folder: str, log_id: int, batch: Batch) -> None:
    """Let the log begin with `batch`, which it holds or which `patch` will write; durable on return.

    Recovery removes the segments before it, and after a crash the log begins there or as before. The epoch of
    the beginning is unknown if it is another one than that of the beginning before, as after a reset. Raises
    PatchRefused: nothing was written; CorruptFile, DiskError.
    """
    try:
        decode_batch(batch.data, log_id=log_id)
    except CorruptBatch as error:
        raise PatchRefused(f"{batch!r}: {error.reason}") from error
    manifest_file = ManifestFile(files, f"{folder}/{MANIFEST_NAME}")
    manifest = manifest_file.load()
    if manifest is None or batch.base_index <= manifest.base_index or batch.offset <= manifest.base_offset:
        raise PatchRefused(f"{batch!r} is not after the beginning of the log")
    if manifest.durable_offset < batch.offset:
        manifest = replace(manifest, durable_index=batch.base_index - 1, durable_offset=batch.offset)
    epoch = manifest.epoch if manifest.epoch is not None and manifest.epoch.term == batch.term else None
    manifest_file.save(
        replace(
            manifest,
            base_index=batch.base_index,
            base_offset=batch.offset,
            base_term=batch.term,
            epoch=epoch,
        )
    )
