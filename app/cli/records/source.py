"""Input of `commitlog append`: a file or standard input, whole or line by line."""

import io
import select
from collections import deque
from collections.abc import Iterator
from typing import IO, cast

from app.cli.context import CommandFailed, ExitCode
from storage.units import KIB, MIB

RECORD_BYTES = 256 * MIB  # at most, before the service applies its own limit: the memory stays bounded
_CHUNK_BYTES = 64 * KIB


class Source:
    """Bytes of an input. A line or a whole input above RECORD_BYTES is refused before it is in memory.

    Lines of a pipe arrive when its writer sends them: `is_dry` reports that the next one has not arrived yet.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.file = cast("io.BufferedReader", file)
        self._ahead: deque[bytes] = deque()  # complete lines that were read and not yielded yet

    def whole(self) -> bytes:
        """Return the whole input. Raises CommandFailed when it is too large for one record."""
        content = self.file.read(RECORD_BYTES + 1)
        check_size(len(content), "the input", "--format lines makes a record of each line")
        return content

    def __iter__(self) -> Iterator[bytes]:
        """Yield the lines without their `\\n`. Raises CommandFailed for one above RECORD_BYTES."""
        number, rest, rest_bytes = 1, [b""], 0
        while chunk := self._arrived():
            *lines, last = chunk.split(b"\n")
            self._ahead.extend(lines)
            while self._ahead:
                yield b"".join([*rest, self._ahead.popleft()])
                number, rest, rest_bytes = number + 1, [b""], 0
            rest.append(last)
            rest_bytes += len(last)
            check_size(rest_bytes, f"line {number}", "--format raw makes one record of a file")
        if rest_bytes:
            yield b"".join(rest)

    def is_dry(self, *, has_blank_lines: bool) -> bool:
        """Return whether the next line has to be waited for. Of a file it is always there.

        has_blank_lines: a line without text is a record too, and not left out by the reader.
        """
        if (has_blank_lines and self._ahead) or any(line.strip() for line in self._ahead):
            return False
        return not self._is_readable(0)

    def _arrived(self) -> bytes:
        """Return the bytes that a pipe has, after the first ones have arrived; none at the end."""
        self._is_readable(None)  # a read from a pipe that does not block would report its end
        return self.file.read1(_CHUNK_BYTES)

    def _is_readable(self, timeout_s: float | None) -> bool:
        try:
            return bool(select.select([self.file], [], [], timeout_s)[0])
        except (OSError, ValueError):  # a buffer in memory
            return True


def check_size(size_bytes: int, place: str, advice: str) -> None:
    """Raise CommandFailed for a part of an input that is too large for one record."""
    if size_bytes > RECORD_BYTES:
        raise CommandFailed(
            f"{place} has more than {RECORD_BYTES // MIB} MiB, which is too much for one record; {advice}",
            ExitCode.USAGE,
        )
