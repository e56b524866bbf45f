"""Input of `commitlog append`: a file or standard input, whole or line by line."""

import io
import select
from collections.abc import Iterator
from typing import IO, cast

from app.cli.context import CommandFailed, ExitCode

RECORD_BYTES = 256 << 20  # at most, before the service applies its own limit: the memory stays bounded
_CHUNK_BYTES = 1 << 16


class Source:
    """Bytes of an input. A line or a whole input above RECORD_BYTES is refused before it is in memory.

    Lines of a pipe arrive when its writer sends them: `is_dry` reports that the next one has not arrived yet.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.file = cast("io.BufferedReader", file)
        self._ahead = 0  # complete lines that were read and not yielded yet

    def whole(self) -> bytes:
        """Return the whole input. Raises CommandFailed when it is too large for one record."""
        content = self.file.read(RECORD_BYTES + 1)
        check_size(len(content), "the input", "--format lines makes a record of each line")
        return content

    def __iter__(self) -> Iterator[bytes]:
        """Yield the lines without their `\\n`. Raises CommandFailed for one above RECORD_BYTES."""
        number, rest, rest_bytes = 1, [b""], 0
        while chunk := self.file.read1(_CHUNK_BYTES):
            *lines, last = chunk.split(b"\n")
            self._ahead = len(lines)
            for line in lines:
                self._ahead -= 1
                yield b"".join([*rest, line])
                number, rest, rest_bytes = number + 1, [b""], 0
            rest.append(last)
            rest_bytes += len(last)
            check_size(rest_bytes, f"line {number}", "--format raw makes one record of a file")
        if rest_bytes:
            yield b"".join(rest)

    def is_dry(self) -> bool:
        """Return whether the next line has to be waited for. Of a file it is always there."""
        if self._ahead:
            return False
        try:
            return not select.select([self.file], [], [], 0)[0]
        except (OSError, ValueError):  # a buffer in memory
            return False


def check_size(size_bytes: int, place: str, advice: str) -> None:
    """Raise CommandFailed for a part of an input that is too large for one record."""
    if size_bytes > RECORD_BYTES:
        raise CommandFailed(
            f"{place} has more than {RECORD_BYTES >> 20} MiB, which is too much for one record; {advice}",
            ExitCode.USAGE,
        )
