"""Replacement of damaged batches by batches of a replica (see survey.py)."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise

from storage.care.end import durable_before
from storage.care.survey import NO_OFFSET, Damage, end_segment
from storage.errors import CorruptBatch, PatchRefused
from storage.file_system import FileSystem
from storage.format.batch import Batch, decode_batch, follows_chain
from storage.format.segment_format import index_offset, segment_name
from storage.log.log_folder import MANIFEST_NAME, segment_offsets, truncate_files
from storage.log.manifest import ManifestFile
from storage.log.scan import Scan


def patch(
    files: FileSystem, folder: str, log_id: int, damage: Damage, batches: Sequence[Batch]
) -> Damage | None:
    """Write `batches`, the first ones of the damage, in their place; return what is still missing, None for
    nothing.

    Each batch is verified again, including that it follows its neighbour; the batch after the damage must
    follow the last one. Durable on return. After a crash, survey the log again: what was written is intact or
    part of a damage, up to the index that the caller knows to have been durable: the durable point moves
    before a damage at the end. Raises PatchRefused: nothing was written; CorruptFile, StorageFull, DiskError.
    """
    if not batches:
        return damage
    rest = rest_after(files, folder, log_id, damage, batches)
    if damage.next_offset == NO_OFFSET:
        _remove_end(files, folder, damage)  # no intact batch follows the damage
    for first, end, offset in _runs(files, folder, batches):
        _write(files, folder, offset, batches[first:end])
    for offset, following in pairwise(segment_offsets(files, folder)):
        if following >= damage.first_offset and offset < batches[-1].next_offset:
            end_segment(files, folder, offset, following)
    files.sync_folder(folder)
    return rest


def fits(files: FileSystem, folder: str, log_id: int, damage: Damage, batches: Sequence[Batch]) -> bool:
    """Return whether `patch` would take the batches. Raises DiskError."""
    try:
        rest_after(files, folder, log_id, damage, batches)
        _runs(files, folder, batches)
    except PatchRefused:
        return False
    return True


def proves(files: FileSystem, folder: str, log_id: int, damage: Damage, batches: Sequence[Batch]) -> bool:
    """Return whether the batches are exactly those of the damage: the intact batch after it has the chain of
    the last one, which no other batches have. Raises DiskError."""
    return damage.next_offset != NO_OFFSET and fills(files, folder, log_id, damage, batches)


def fills(files: FileSystem, folder: str, log_id: int, damage: Damage, batches: Sequence[Batch]) -> bool:
    """Return whether the batches are all of the damage, and fit its neighbours. Raises DiskError."""
    try:
        return bool(batches) and rest_after(files, folder, log_id, damage, batches) is None
    except PatchRefused:
        return False


def rest_after(
    files: FileSystem, folder: str, log_id: int, damage: Damage, batches: Sequence[Batch]
) -> Damage | None:
    """Return what `batches`, the first ones of the damage, leave of it; None for nothing. Raises PatchRefused
    if they do not fit, DiskError."""
    chain, term = damage.previous_chain, damage.previous_term
    index, offset = damage.first_index, damage.first_offset
    for batch in batches:
        try:
            decode_batch(batch.data, log_id=log_id)
        except CorruptBatch as error:
            raise PatchRefused(f"{batch!r}: {error.reason}") from error
        if batch.base_index != index or batch.offset != offset or batch.term < term:
            raise PatchRefused(f"{batch!r} does not follow index {index - 1} at {offset}")
        if chain is not None and not follows_chain(batch, chain):
            raise PatchRefused(f"{batch!r} is of another history than the batch before it")
        chain, term, index, offset = batch.header.chain, batch.term, batch.next_index, batch.next_offset
    if index <= damage.last_index:
        if NO_OFFSET != damage.next_offset <= offset:
            raise PatchRefused(f"{batches[-1]!r} does not end before {damage.next_offset}")
        return replace(
            damage, first_index=index, first_offset=offset, previous_chain=chain, previous_term=term
        )
    if index != damage.last_index + 1:
        raise PatchRefused(f"{batches[-1]!r} goes beyond index {damage.last_index}")
    if damage.next_offset != NO_OFFSET:
        after = batch_in(files, folder, log_id, damage.next_offset)
        fits = after is not None and offset == after.offset and index == after.base_index
        if after is None or not fits or not follows_chain(after, batches[-1].header.chain):
            raise PatchRefused(f"{after!r} does not follow {batches[-1]!r}")
    return None


def batch_in(files: FileSystem, folder: str, log_id: int, offset: int) -> Batch | None:
    """Return the valid batch at `offset` of a closed log, None if there is none. Raises DiskError."""
    base_offset = max((o for o in segment_offsets(files, folder) if o <= offset), default=None)
    if base_offset is None:
        return None
    path = f"{folder}/{segment_name(base_offset)}"
    with closing(files.open(path)) as file:
        return Scan(path, file, base_offset, log_id, offset, patient=True).next_batch()


def _remove_end(files: FileSystem, folder: str, damage: Damage) -> None:
    """Remove the bytes from a damage at the end on. The batches that replace them may be others, which do not
    end where those ended."""
    manifest_file = ManifestFile(files, f"{folder}/{MANIFEST_NAME}")
    manifest = manifest_file.load()
    if manifest is not None:
        manifest_file.save(durable_before(manifest, damage))
    truncate_files(files, folder, damage.first_offset)


def _runs(files: FileSystem, folder: str, batches: Sequence[Batch]) -> list[tuple[int, int, int]]:
    """Return (first, end, base offset of the segment) for each run of batches within one segment.

    A missing segment is recreated where its index file shows its beginning; without an index file, the
    segment before it is extended. Raises PatchRefused for a batch that crosses into another segment.
    """
    begins = segment_offsets(files, folder)
    indexed = [offset for offset in map(index_offset, files.list(folder)) if offset is not None]
    runs: list[tuple[int, int, int]] = []
    for position, batch in enumerate(batches):
        if batch.offset in indexed or not any(offset <= batch.offset for offset in begins):
            begins = sorted({*begins, batch.offset})
        base_offset = max(offset for offset in begins if offset <= batch.offset)
        if any(base_offset < offset < batch.next_offset for offset in begins):
            raise PatchRefused(f"{batch!r} crosses into another segment")
        if runs and runs[-1][2] == base_offset:
            runs[-1] = (runs[-1][0], position + 1, base_offset)
        else:
            runs.append((position, position + 1, base_offset))
    return runs


def _write(files: FileSystem, folder: str, base_offset: int, batches: Sequence[Batch]) -> None:
    """Write batches into the segment, which is created if missing, and sync it."""
    with closing(files.open(f"{folder}/{segment_name(base_offset)}", create=True)) as file:
        file.pwrite([batch.data for batch in batches], batches[0].offset - base_offset)
        file.sync()
