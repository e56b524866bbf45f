"""Ways to damage a log that is not open, and the way back with the help of an intact twin.

`python -m tests.chaos.storage` may run these at full size: `damage_once` takes any FileSystem, `heal`
replaces the repair of a node with its peers.
"""

from collections.abc import Callable
from random import Random

from storage.care.patch import patch
from storage.care.survey import Damage, survey
from storage.errors import PatchRefused
from storage.file_system import FileSystem
from storage.format.batch import Batch
from storage.log.aside import set_aside
from storage.log.commitlog import NO_INDEX, Commitlog
from tests.unit.storage.support import FOLDER, LOG_ID, content


def _some(files: FileSystem, folder: str, suffix: str, chance: Random) -> str:
    names = [name for name in files.sizes(folder) if name.endswith(suffix)]
    return f"{folder}/{chance.choice(names)}"


def _write(files: FileSystem, path: str, data: bytes, offset: int) -> None:
    file = files.open(path)
    file.pwrite(data, offset)
    file.sync()
    file.close()


def flip_bits(files: FileSystem, path: str, chance: Random) -> str:
    """Flip 1 to 5 bits."""
    size = max(1, files.sizes(path.rpartition("/")[0])[path.rpartition("/")[2]])
    for _ in range(chance.randint(1, 5)):
        place = chance.randrange(size)
        old = files.read(path)[place : place + 1] or b"\0"
        _write(files, path, bytes([old[0] ^ 1 << chance.randrange(8)]), place)
    return f"bits flipped in {path}"


def overwrite(files: FileSystem, path: str, chance: Random) -> str:
    """Zeros or noise over a stretch of up to 4 KiB."""
    size = len(files.read(path))
    start = chance.randrange(max(1, size))
    length = min(chance.randint(1, 4096), max(1, size - start))
    data = bytes(length) if chance.random() < 0.5 else chance.randbytes(length)
    _write(files, path, data, start)
    return f"{length} bytes overwritten at {start} of {path}"


def cut_short(files: FileSystem, path: str, chance: Random) -> str:
    size = chance.randrange(max(1, len(files.read(path))))
    file = files.open(path)
    file.truncate(size)
    file.sync()
    file.close()
    return f"{path} cut to {size}"


def append_noise(files: FileSystem, path: str, chance: Random) -> str:
    _write(files, path, chance.randbytes(chance.randint(1, 300)), len(files.read(path)))
    return f"noise behind {path}"


def remove(files: FileSystem, path: str, chance: Random) -> str:
    files.remove(path)
    files.sync_folder(path.rpartition("/")[0])
    return f"{path} removed"


WAYS: tuple[Callable[[FileSystem, str, Random], str], ...] = (
    flip_bits,
    overwrite,
    cut_short,
    append_noise,
    remove,
)


def damage_once(files: FileSystem, folder: str, chance: Random) -> str:
    """Damage one file of the log, most often a segment, in one of WAYS; return what was done."""
    suffix = chance.choices([".log", ".index", "epochs", "manifest"], [8, 3, 1, 1])[0]
    if not any(name.endswith(suffix) for name in files.sizes(folder)):
        return f"no {suffix} is left"
    return chance.choice(WAYS)(files, _some(files, folder, suffix, chance), chance)


def heal(
    files: FileSystem, twin: Commitlog, committed_index: int, chance: Random, folder: str = FOLDER
) -> tuple[str, int]:
    """Bring a damaged log back as a node does: survey, fetch from the twin in pieces, patch; else set aside.

    Returns how: "patched" or "set aside", and how many records came from the twin.
    """
    found = survey(files, folder, LOG_ID, committed_index)
    fetched = 0
    if not found.structural:
        try:
            for damage in found.damages:
                rest: Damage | None = damage
                while rest is not None:
                    batches = twin.read_batches(rest.first_index, chance.randint(1, 9_000), rest.last_index)
                    fetched += sum(batch.count for batch in batches)
                    rest = patch(files, folder, LOG_ID, rest, batches)
        except PatchRefused:
            pass
        else:
            return "patched", fetched
    set_aside(files, folder)
    return "set aside", fetched


def refill(log: Commitlog, twin: Commitlog) -> list[Batch]:
    """Append to an emptied log what the twin holds, as replication would; return it."""
    if log.end_index == NO_INDEX:
        log.append(content(twin))
    return content(log)
