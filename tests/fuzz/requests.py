"""Random requests: routes and parameters of the OpenAPI document, with values that no client should send."""

import gzip
import json
import re
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import quote, urlencode

import pyarrow as pa

from storage.format.batch import stamp
from storage.format.records import RecordColumns, encode_body

INTEGERS = ("-1", "0", "1", "2", "7", "50", str(2**31), str(2**63 - 1), str(2**63), str(2**64), "1" * 5_000)
WORDS = (
    "",
    " ",
    "1.5",
    "1e3",
    "nan",
    "true",
    "null",
    "earliest",
    "latest",
    "\u0661",
    "+1",
    "0x1",
    "a,b",
    "\x00",
)
TEXTS = (
    *WORDS,
    "data",
    "control",
    "json",
    "base64",
    "local",
    "committed",
    "all",
    "leader",
    "x" * 300,
    "\ud7ff\n",
)
LOGS = (
    "default",
    "default",
    "default",
    "default",
    "made",
    "absent",
    "__controller",
    "__audit",
    "default:trim",
)
PATHS = ("n1", "n9", "0", "1", "entries", "__entries", "c1", "..", "a/b", "%00", "\x00", "é", "x" * 300, "-1")
SLOW = {"wait_ms": ("0", "20", "-1", "60001", "x"), "timeout_ms": ("1", "300", "0", "60001", "x")}
ACCEPTS = (
    "*/*",
    "application/json",
    "application/x-ndjson",
    "application/vnd.apache.arrow.stream",
    "application/vnd.apache.parquet",
    "application/vnd.commitlog.batch",
    "application/json;q=0",
    "text/html, application/json;q=x",
    "/",
    ",,;",
    "application/" + "x" * 3_000,
)
TYPES = (
    "application/json",
    "application/json",
    "application/x-ndjson",
    "application/octet-stream",
    "application/vnd.apache.arrow.stream",
    "application/vnd.commitlog.batch",
    "application/json; charset=utf-16",
    "text/plain",
    "\xff",
)
FIELDS = (
    *("records", "value", "value_json", "value_base64", "key", "key_base64", "headers", "timestamp"),
    *("match_index", "match_term", "producer", "id", "epoch", "sequence", "fencing_token", "name", "log"),
    *("replication", "replicas", "retention", "ms", "bytes", "durability", "until_index", "force", "token"),
    *("match_token", "candidate", "unclean", "from_index", "index", "fence", "url", "peer_address", "to"),
    *("learners", "priorities", "settings"),
)


@dataclass(frozen=True)
class Case:
    """template: path of the route in OpenAPI. names_route: the path cannot be that of another route."""

    method: str
    template: str
    url: str
    headers: list[tuple[bytes, bytes]]
    body: bytes
    names_route: bool

    def __str__(self) -> str:
        return f"{self.method} {self.url[:300]} {self.headers!r:.400} {self.body[:300]!r}"


def cases_of(document: dict[str, Any], chance: Random) -> Case:
    """Return one request."""
    templates = sorted(document["paths"])
    template = chance.choice([*templates, *(name for name in templates if "records" in name)])
    operations = document["paths"][template]
    method = chance.choice(sorted(operations)).upper()
    operation = operations[method.lower()]
    names_route = True

    def part(match: re.Match[str]) -> str:
        nonlocal names_route
        text = chance.choice(LOGS if match[1] == "log" else PATHS)
        names_route = names_route and re.fullmatch(r"[a-z0-9_]+", text) is not None
        return quote(text, safe="" if chance.random() < 0.8 else "/%")

    path = re.sub(r"\{(\w+)\}", part, template)
    if method == "GET" and chance.random() < 0.05:
        method, names_route = "HEAD", False
    if chance.random() < 0.03:
        method, names_route = chance.choice(("PUT", "PATCH", "POST", "OPTIONS", "TRACE", "DELETE")), False
    query = _query(operation, chance)
    return Case(
        method,
        template,
        f"http://node{path}{'?' + query if query else ''}",
        _headers(chance),
        b"" if method in ("GET", "HEAD") else _body(chance),
        names_route,
    )


def _query(operation: dict[str, Any], chance: Random) -> str:
    names = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
    pairs = []
    for name in chance.sample(names, min(len(names), chance.choice((0, 0, 1, 1, 2, 3)))):
        values = SLOW.get(name) or chance.choice((INTEGERS, TEXTS))
        pairs += [(name, chance.choice(values))] * chance.choice((1, 1, 1, 2))
    if chance.random() < 0.05:
        pairs.append((chance.choice(("unknown", "", "limit[]", "\x00")), "1"))
    return chance.choice(("&", ";;%zz", "%")) if chance.random() < 0.02 else urlencode(pairs)


def _headers(chance: Random) -> list[tuple[bytes, bytes]]:
    found = [("accept", chance.choice(ACCEPTS if chance.random() < 0.5 else ACCEPTS[:1]))]
    found.append(("content-type", chance.choice(TYPES)))
    for name, values in (
        ("idempotency-key", ("k", "", "x" * 256, "\xe9", "a b")),
        ("commitlog-min-index", ("0", "-1", "x", str(2**64))),
        ("commitlog-no-forward", ("1", "0", "yes")),
        ("commitlog-key", ("k", "\xff", "")),
        ("commitlog-timestamp", ("1", "-1", "x", str(2**63))),
        ("if-match", ('"1"', "*", "x", '"', 'W/"1"', '"-1"', '"' + "9" * 5_000 + '"')),
        ("last-event-id", ("1", "-1", "x", str(2**64))),
        ("content-encoding", ("gzip", "zstd", "br", "gzip, gzip", "identity")),
        ("origin", ("http://node", "http://evil", "null")),
        ("authorization", ("Bearer x", "", "\xff")),
        ("x-request-id", ("id", "a b", "x" * 200, "\xff")),
        ("traceparent", ("00-" + "1" * 32 + "-" + "1" * 16 + "-01", "x", "\xff")),
    ):
        if chance.random() < 0.08:
            found += [(name, chance.choice(values))] * chance.choice((1, 1, 2))
    return [(name.encode(), value.encode("latin-1")) for name, value in found]


def _body(chance: Random) -> bytes:
    kind = chance.random()
    if kind < 0.55:
        body = json.dumps(_value(chance, 3)).encode()
    elif kind < 0.6:
        body = b"[" * 60_000 if chance.random() < 0.5 else b'{"records":' * 5_000
    elif kind < 0.7:
        lines = [json.dumps({"value": "x", **_object(chance, 1)}) for _ in range(3)]
        body = "\n".join(lines).encode()
    elif kind < 0.8:
        body = _arrow(chance)
    elif kind < 0.88:
        body = _batch()
    else:
        body = chance.randbytes(chance.choice((0, 1, 50)))
    if chance.random() < 0.25 and body:  # one part missing, doubled or changed
        at = chance.randrange(len(body))
        body = chance.choice((body[:at], body + body, body[:at] + chance.randbytes(1) + body[at + 1 :]))
    return gzip.compress(body) if chance.random() < 0.05 else body


def _arrow(chance: Random) -> bytes:
    columns: dict[str, Any] = {"value": chance.choice((["a", None], [b"\xff", b""], [1, 2], [["a"], []]))}
    if chance.random() < 0.5:
        columns["key"] = chance.choice((["k", None], [1.5, None]))
    if chance.random() < 0.3:
        columns["timestamp"] = chance.choice(([1, None], ["x", "y"], [2**63 - 1, -(2**63)]))
    if chance.random() < 0.3:
        columns["headers"] = chance.choice(([[{"name": "n", "value": b"v"}], None], [["x"], []]))
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _batch() -> bytes:
    records = RecordColumns()
    records.add(b"a", b"k")
    batch = stamp(
        encode_body(records),
        log_id=0,
        base_index=0,
        term=0,
        timestamp_ms=1,
        offset=0,
        previous_chain=bytes(16),
    )
    return bytes(batch.data)


def _object(chance: Random, depth: int) -> dict[str, Any]:
    return {chance.choice(FIELDS): _value(chance, depth - 1) for _ in range(chance.randrange(4))}


def _value(chance: Random, depth: int) -> Any:
    kind = chance.random()
    if depth > 0 and kind < 0.6:
        return _object(chance, depth)
    if depth > 0 and kind < 0.7:
        return [_value(chance, depth - 1) for _ in range(chance.randrange(3))]
    return chance.choice(
        (None, True, -1, 0, 1, 2**63, 2**64, 1.5, 1e308, "", "a", "n1", "raft", "\x00", "\ud800", "x" * 500)
    )
