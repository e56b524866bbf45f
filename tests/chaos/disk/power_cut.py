"""Change the folder of a killed node as a power cut does (faulty_files.py)."""

import shutil
from pathlib import Path
from random import Random

from tests.chaos.disk.faulty_files import CONTENTS, NAMES, boots_file, durable_folder

SECTOR_BYTES = 512


def cut_power(data: Path, chance: Random) -> int:
    """Bring DATA to a state that a power cut may leave; return how many files lost something.

    Of a folder's unsynced new, renamed and removed names all have reached the disk, or none. Of a file's
    unsynced bytes all, none, or any sectors. What was synced stays.
    """
    shadow = durable_folder(data)
    left = data.with_name(data.name + ".left")
    lost = 0
    folders = [
        Path(),
        *sorted({p.relative_to(d) for d in (data, shadow / NAMES) for p in d.rglob("*") if p.is_dir()}),
    ]
    for folder in folders:
        (left / folder).mkdir(parents=True, exist_ok=True)
        source = data if chance.random() < 0.5 else shadow / NAMES
        names = [] if not (source / folder).is_dir() else sorted((source / folder).iterdir())
        for place in names:
            if place.is_file():
                durable, now = both_contents(data / folder / place.name, shadow, place)
                torn = tear(durable, now, chance)
                lost += torn != now
                (left / folder / place.name).write_bytes(torn)
    shutil.rmtree(data)
    left.rename(data)
    with boots_file(data).open("ab") as boots:
        boots.write(b".")
    return lost


def both_contents(real: Path, shadow: Path, chosen: Path) -> tuple[bytes, bytes]:
    """The durable and the last content of the file behind the name that outlives the cut."""
    content = shadow / CONTENTS / str(real.stat().st_ino) if real.exists() else None
    if content is None or not content.exists():  # removed since, or no file of the seam (a lock)
        durable = chosen.read_bytes()
        return durable, durable
    if chosen != real and not chosen.samefile(content):  # replaced since: the old one was whole
        durable = chosen.read_bytes()
        return durable, durable
    return content.read_bytes(), real.read_bytes()


def tear(durable: bytes, now: bytes, chance: Random) -> bytes:
    """Some sectors of `now` over `durable`."""
    fate = chance.random()
    if durable == now or fate < 0.3:
        return durable
    if fate < 0.5:
        return now
    size = chance.randint(min(len(durable), len(now)), max(len(durable), len(now)))
    torn = bytearray(durable[:size].ljust(size, b"\0"))
    reached = chance.random()
    for start in range(0, size, SECTOR_BYTES):
        sector = now[start : min(start + SECTOR_BYTES, size)]
        if sector != torn[start : start + SECTOR_BYTES] and chance.random() < reached:
            torn[start : start + len(sector)] = sector
    return bytes(torn)
