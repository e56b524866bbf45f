"""The query of an append: acks, timeout_ms, and the conditions, which a JSON body may state instead."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_plus

from app.api.http.json_decoding import MAX_ORDINAL
from app.errors import InvalidRequest
from app.log.contract import Acks
from app.log.producers import Producer

MAX_TIMEOUT_MS: Final = 60_000
DEFAULT_TIMEOUT_MS: Final = 5_000
_PRODUCER: Final = ("producer_id", "producer_epoch", "producer_sequence")
_NAMES: Final = (
    "acks",
    "timeout_ms",
    "match_index",
    "match_term",
    "fencing_token",
    *_PRODUCER,
    "producer_allow_gap",
)


@dataclass(frozen=True, slots=True)
class AppendParameters:
    """Parameters of the query. None: absent."""

    acks: Acks = Acks.QUORUM
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    match_index: int | None = None
    match_term: int | None = None
    fencing_token: str | None = None
    producer: Producer | None = None

    @property
    def is_plain(self) -> bool:
        """True if there is no condition and no producer."""
        conditions = (self.match_index, self.match_term, self.fencing_token, self.producer)
        return conditions == (None, None, None, None)


_DEFAULTS: Final = AppendParameters()


def parse_append_query(query: bytes) -> AppendParameters:
    """Read the query string of an append. Raises InvalidRequest with all errors."""
    return _parse(query) if query else _DEFAULTS


@lru_cache(maxsize=256)  # most clients repeat one query; failures are not cached
def _parse(query: bytes) -> AppendParameters:
    errors: list[tuple[str, str]] = []
    given = _split(query, errors)
    acks = Acks.QUORUM
    if "acks" in given:
        try:
            acks = Acks(given["acks"])
        except ValueError:
            errors.append(("/query/acks", f"must be one of leader, quorum, all, got {given['acks'][:40]!r}"))
    timeout_ms = _number(given, "timeout_ms", 1, MAX_TIMEOUT_MS, errors)
    parameters = AppendParameters(
        acks=acks,
        timeout_ms=DEFAULT_TIMEOUT_MS if timeout_ms is None else timeout_ms,
        match_index=_number(given, "match_index", 0, MAX_ORDINAL, errors),
        match_term=_number(given, "match_term", 0, MAX_ORDINAL, errors),
        fencing_token=_name(given, "fencing_token", errors),
        producer=_producer(given, errors),
    )
    if errors:
        raise InvalidRequest(*errors)
    return parameters


def without_timeout(query: bytes) -> list[bytes]:
    """Return the parts of a query as sent, without timeout_ms in any encoding of its name."""
    return [part for part in query.split(b"&") if part and _name_of(part) != "timeout_ms"]


def _name_of(part: bytes) -> str:
    return unquote_plus(part.partition(b"=")[0].decode("latin-1"))


def _split(query: bytes, errors: list[tuple[str, str]]) -> dict[str, str]:
    given: dict[str, str] = {}
    for part in query.split(b"&"):
        if not part:
            continue
        name, raw_value = _name_of(part), part.partition(b"=")[2]
        if name not in _NAMES:
            errors.append((f"/query/{name}", "unknown parameter"))
        elif name in given:
            errors.append((f"/query/{name}", "given twice"))
        else:
            given[name] = unquote_plus(raw_value.decode("latin-1"))
    return given


def _number(
    given: dict[str, str], name: str, least: int, most: int, errors: list[tuple[str, str]]
) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) <= 19 and least <= int(text) <= most:
        return int(text)
    errors.append((f"/query/{name}", f"must be a whole number from {least} to {most}, got {text[:40]!r}"))
    return None


def _name(given: dict[str, str], name: str, errors: list[tuple[str, str]]) -> str | None:
    text = given.get(name)
    if text is None or 1 <= len(text) <= 255:
        return text
    errors.append((f"/query/{name}", f"must have 1 to 255 characters, got {len(text)}"))
    return None


def _producer(given: dict[str, str], errors: list[tuple[str, str]]) -> Producer | None:
    allow_gap = given.get("producer_allow_gap")
    if allow_gap is not None and allow_gap not in ("true", "false"):
        errors.append(("/query/producer_allow_gap", f"must be true or false, got {allow_gap[:40]!r}"))
    present = [name for name in _PRODUCER if name in given]
    if not present:
        if allow_gap is not None:
            errors.append(
                ("/query/producer_allow_gap", "requires producer_id, producer_epoch and producer_sequence")
            )
        return None
    missing = [name for name in _PRODUCER if name not in given]
    errors.extend((f"/query/{name}", f"is required with {present[0]}") for name in missing)
    producer_id = _name(given, "producer_id", errors)
    epoch = _number(given, "producer_epoch", 0, MAX_ORDINAL, errors)
    sequence = _number(given, "producer_sequence", 0, MAX_ORDINAL, errors)
    if producer_id is None or epoch is None or sequence is None:
        return None
    return Producer(producer_id, epoch, sequence, allow_gap == "true")


def parse_idempotency_key(raw: bytes | None) -> str | None:
    """Return the Idempotency-Key header: 1 to 255 visible ASCII characters. Raises InvalidRequest."""
    if raw is None:
        return None
    if 1 <= len(raw) <= 255 and all(0x21 <= byte <= 0x7E for byte in raw):
        return raw.decode("ascii")
    got = f"{len(raw)} bytes" if len(raw) > 255 else repr(raw[:40].decode("latin-1"))
    raise InvalidRequest(
        ("/headers/Idempotency-Key", f"must have 1 to 255 visible ASCII characters, got {got}")
    )
