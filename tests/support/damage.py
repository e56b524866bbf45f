"""Ways in which a disk damages the files of a log, for tests that want to see the log come back.

Everything happens behind the node's back, to files in its data folder. `IN_PLACE` damages may be done to a
node that runs; the others cut or remove files, which a running process would not notice, or die of.
"""

from collections.abc import Callable
from pathlib import Path
from random import Random

PAGE_BYTES = 4096

Injury = Callable[[Path, Random], str]
"""(folder of a log, chance) -> what was done, in words; "" when the log has nothing to damage so."""


def log_folder(data: Path, log: str = "default") -> Path:
    """The folder of a log in a node's data folder."""
    return data / "logs" / log


def segments(folder: Path) -> list[Path]:
    """The segment files that hold anything, oldest first."""
    return sorted(path for path in folder.glob("*.log") if path.stat().st_size)


def bytes_of_log(folder: Path) -> bytes:
    """What the segments hold, one behind the other; equal on replicas that were rolled alike or not."""
    return b"".join(path.read_bytes() for path in segments(folder))


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Change bytes where they stand: mapped or open, the file stays the same one."""
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
    """One bit, anywhere in any segment."""
    path = chance.choice(segments(folder))
    offset = chance.randrange(path.stat().st_size)
    flip_bit(path, offset, chance.randrange(8))
    return f"a bit of {path.name} at {offset}"


def zero_page(folder: Path, chance: Random) -> str:
    """A page of zeros in any segment."""
    return _fill_page(folder, chance, "zeros", lambda size: bytes(size))


def noise_page(folder: Path, chance: Random) -> str:
    """A page of noise in any segment."""
    return _fill_page(folder, chance, "noise", chance.randbytes)


def _fill_page(folder: Path, chance: Random, what: str, make: Callable[[int], bytes]) -> str:
    path = chance.choice(segments(folder))
    size = path.stat().st_size
    offset = chance.randrange(0, size, PAGE_BYTES)
    overwrite(path, offset, make(min(PAGE_BYTES, size - offset)))
    return f"a page of {what} in {path.name} at {offset}"


def misplaced_page(folder: Path, chance: Random) -> str:
    """A page holds what belongs to another place: a misdirected write."""
    path = chance.choice(segments(folder))
    data = path.read_bytes()
    if len(data) < 2 * PAGE_BYTES:
        return ""
    source, target = chance.sample(range(0, len(data) - PAGE_BYTES, PAGE_BYTES // 2), 2)
    overwrite(path, target, data[source : source + PAGE_BYTES])
    return f"bytes {source} of {path.name} stand at {target} too"


def cut_segment(folder: Path, chance: Random) -> str:
    """Any segment ends too early."""
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
    """Do one damage, drawn by chance among those that the log offers; return what it was."""
    while True:
        injury = chance.choice(kinds)
        if done := injury(folder, chance):
            return f"{injury.__name__}: {done}"
