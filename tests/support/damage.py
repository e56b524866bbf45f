"""Kinds of damage of a log's files, for tests of repairs.

The damage is done to files in the data folder, without the node's knowledge. `IN_PLACE` damages may be done
to a running node; the others truncate or remove files, which a running process would not notice, or would
crash on.
"""

from collections.abc import Callable
from pathlib import Path
from random import Random

PAGE_BYTES = 4096

Injury = Callable[[Path, Random], str]
"""(folder of a log, chance) -> description of the damage; "" if the log has nothing to damage in this way."""


def log_folder(data: Path, log: str = "default") -> Path:
    """Return the folder of a log in a node's data folder."""
    return data / "logs" / log


def segments(folder: Path) -> list[Path]:
    """Return the segment files that are not empty, oldest first."""
    return sorted(path for path in folder.glob("*.log") if path.stat().st_size)


def bytes_of_log(folder: Path) -> bytes:
    """Return the concatenated content of the segments; equal on replicas with different segment
    boundaries."""
    return b"".join(path.read_bytes() for path in segments(folder))


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Overwrite bytes in place: a mapped or open file stays the same file."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


# --- one damage each ------------------------------------------------------------------------------------


def flip_bit(path: Path, offset: int, bit: int = 0) -> None:
    with path.open("rb") as file:
        file.seek(offset)
        (value,) = file.read(1)
    overwrite(path, offset, bytes([value ^ 1 << bit]))


def flip_in_segment(folder: Path, chance: Random) -> str:
    """Flip one bit anywhere in any segment."""
    path = chance.choice(segments(folder))
    offset = chance.randrange(path.stat().st_size)
    flip_bit(path, offset, chance.randrange(8))
    return f"a bit of {path.name} at {offset}"


def zero_page(folder: Path, chance: Random) -> str:
    """Write a page of zeros into any segment."""
    return _fill_page(folder, chance, "zeros", lambda size: bytes(size))


def noise_page(folder: Path, chance: Random) -> str:
    """Write a page of noise into any segment."""
    return _fill_page(folder, chance, "noise", chance.randbytes)


def _fill_page(folder: Path, chance: Random, what: str, make: Callable[[int], bytes]) -> str:
    path = chance.choice(segments(folder))
    size = path.stat().st_size
    offset = chance.randrange(0, size, PAGE_BYTES)
    overwrite(path, offset, make(min(PAGE_BYTES, size - offset)))
    return f"a page of {what} in {path.name} at {offset}"


def misplaced_page(folder: Path, chance: Random) -> str:
    """Replace a page by bytes of another place: a misdirected write."""
    path = chance.choice(segments(folder))
    data = path.read_bytes()
    if len(data) < 2 * PAGE_BYTES:
        return ""
    source, target = chance.sample(range(0, len(data) - PAGE_BYTES, PAGE_BYTES // 2), 2)
    overwrite(path, target, data[source : source + PAGE_BYTES])
    return f"bytes {source} of {path.name} stand at {target} too"


def cut_segment(folder: Path, chance: Random) -> str:
    """Truncate any segment."""
    path = chance.choice(segments(folder))
    size = chance.randrange(path.stat().st_size)
    with path.open("r+b") as file:
        file.truncate(size)
    return f"{path.name} cut to {size} bytes"


def delete_segment(folder: Path, chance: Random) -> str:
    path = chance.choice(segments(folder))
    path.unlink()
    return f"{path.name} deleted"


def delete_all_segments(folder: Path, chance: Random) -> str:
    for path in segments(folder):
        path.unlink()
    return "all segments deleted"


def _small_file(name: str, how: str) -> Injury:
    def injure(folder: Path, chance: Random) -> str:
        paths = sorted(folder.glob(name))
        if not paths:
            return ""
        path = chance.choice(paths)
        size = path.stat().st_size
        if how == "deleted":
            path.unlink()
        elif how == "garbage":
            overwrite(path, 0, chance.randbytes(size))
        elif how == "cut":
            with path.open("r+b") as file:
                file.truncate(size // 2)
        elif size:
            flip_bit(path, chance.randrange(size), chance.randrange(8))
        return f"{path.name} {how}"

    injure.__name__ = f"{name.lstrip('*.')}_{how}"
    return injure


SMALL_FILES = ("manifest", "vote", "checkpoint", "epochs", "state", "*.index")

IN_PLACE: tuple[Injury, ...] = (flip_in_segment, zero_page, noise_page, misplaced_page)
STOPPED: tuple[Injury, ...] = (
    *IN_PLACE,
    cut_segment,
    delete_segment,
    delete_all_segments,
    *(_small_file(name, how) for name in SMALL_FILES for how in ("flipped", "garbage", "deleted", "cut")),
)


def injure(folder: Path, chance: Random, kinds: tuple[Injury, ...] = STOPPED) -> str:
    """Do one possible damage, chosen at random; return its description."""
    while True:
        injury = chance.choice(kinds)
        if done := injury(folder, chance):
            return f"{injury.__name__}: {done}"
