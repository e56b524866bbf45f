"""Processor time of `app.schemas`: the check of an append, and records to columns.

    python -m tests.bench.schema_cost [--records 20000] [--rounds 15]

Prints one JSON line for each format and kind of record: `check_us` of a batch of 100 records, and
`decode_per_s`. The records are the flights of the demo: about 300 bytes with 19 fields, or (`short`) about
200 bytes with 13. The minimum of the rounds depends little on what else runs on the machine.
"""

import argparse
import base64
import io
import json
import time
from collections.abc import Callable
from typing import Any

import fastavro
import msgspec
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from app.demo.flights import read_flights
from app.schemas import LogSchema, RecordDecoder, columns_of, propose
from tests.bench.systems.local_cluster import print_figure
from tests.support.programs import run_program

BATCH_RECORDS = 100
SHORT = (
    *("year", "month", "day", "dep_time", "dep_delay", "arr_delay", "carrier", "flight", "tailnum"),
    *("origin", "dest", "distance", "time_hour"),
)


def least_s(work: Callable[[], object], rounds: int) -> float:
    """Return the least processor time of a call."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def measure(name: str, schema: LogSchema, values: list[bytes], rounds: int) -> None:
    decoder = RecordDecoder({schema.version: schema}, schema.version)
    batch = values[:BATCH_RECORDS]

    def check() -> None:
        for _ in range(20):
            assert decoder.check(batch) is None

    array = pa.array(values, pa.binary())
    decoded = decoder.decode(array)
    assert decoded.rows.num_rows == len(values)
    print_figure(
        bench="schema_cost",
        name=name,
        record_bytes=round(sum(map(len, values)) / len(values)),
        columns=len(columns_of(schema)),
        check_us=round(least_s(check, rounds) / 20 * 1e6, 1),
        decode_per_s=round(len(values) / least_s(lambda: decoder.decode(array), max(3, rounds // 3))),
    )


def json_schema(definition: str) -> LogSchema:
    return LogSchema(1, 0, "json", definition)


def avro(rows: list[dict[str, Any]]) -> tuple[LogSchema, list[bytes]]:
    kinds = {int: "long", str: "string"}
    fields = [
        {"name": name, "type": ["null", kinds[type(value)]], "default": None}
        for name, value in rows[0].items()
    ]
    document = {"type": "record", "name": "Flight", "fields": fields}
    parsed = fastavro.parse_schema(document)
    values = []
    for row in rows:
        target = io.BytesIO()
        fastavro.schemaless_writer(target, parsed, row)
        values.append(target.getvalue())
    return LogSchema(1, 0, "avro", json.dumps(document)), values


def protobuf(rows: list[dict[str, Any]]) -> tuple[LogSchema, list[bytes]]:
    kinds = {
        int: descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
        str: descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    }
    file = descriptor_pb2.FileDescriptorProto(name="flight.proto", syntax="proto3")
    message = file.message_type.add(name="Flight")
    for number, (name, value) in enumerate(rows[0].items(), 1):
        message.field.add(name=name, number=number, type=kinds[type(value)], label=1)
    held = base64.b64encode(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()).decode()
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    flight = message_factory.GetMessageClass(pool.FindMessageTypeByName("Flight"))
    values = [flight(**{k: v for k, v in row.items() if v is not None}).SerializeToString() for row in rows]
    return LogSchema(1, 0, "protobuf", held, "Flight"), values


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    flights = [
        bytes(record.value) for record in read_flights(given.records) if isinstance(record.value, bytes)
    ]
    rows = [msgspec.json.decode(value) for value in flights]
    short_rows = [{name: row[name] for name in SHORT} for row in rows]
    short = list(map(msgspec.json.encode, short_rows))
    sparse = [msgspec.json.encode({k: v for k, v in row.items() if k != "dep_time"}) for row in rows]
    more = [value[:-1] + b',"weather":{"wind":12.5}}' for value in flights]
    flat = json_schema(propose(flights).definition)
    ddl = json_schema(", ".join(f"{column.name} {column.type}" for column in columns_of(flat)))
    limited = json.loads(flat.definition)
    limited["properties"]["month"] |= {"minimum": 1, "maximum": 12}
    patterned = json.loads(flat.definition)
    patterned["properties"]["carrier"] |= {"pattern": "^[A-Z0-9]{2}$"}
    measure("json short", json_schema(propose(short).definition), short, given.rounds)
    measure("json flights", flat, flights, given.rounds)
    measure("json flights, limits", json_schema(json.dumps(limited)), flights, given.rounds)
    measure("json flights, DDL", ddl, flights, given.rounds)
    measure("json flights, DDL, a field is missing", ddl, sparse, given.rounds)
    measure("json flights, an unknown field", ddl, more, given.rounds)
    measure("json flights, a pattern", json_schema(json.dumps(patterned)), flights[:2_000], given.rounds)
    measure("avro flights", *avro(rows), given.rounds)
    measure("protobuf flights", *protobuf(rows), given.rounds)


if __name__ == "__main__":
    run_program(main)
