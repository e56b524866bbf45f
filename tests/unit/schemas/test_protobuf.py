"""Protobuf: columns, rows, unknown fields, and damaged messages."""

import base64
import contextlib
import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from app.schemas import (
    Column,
    LogSchema,
    RecordDecoder,
    SchemaInvalid,
    columns_of,
    differences,
    incompatibilities,
)
from app.schemas.protobuf import _TYPE_NUMBERS
from tests.unit.schemas.support import rows_of

Fields = descriptor_pb2.FieldDescriptorProto
OPTIONAL, REQUIRED, REPEATED = 1, 2, 3
NUMBERED = tuple(_TYPE_NUMBERS.keys() - {Fields.TYPE_ENUM})


def file_of(syntax: str = "proto3") -> descriptor_pb2.FileDescriptorProto:
    """Return the descriptor of a file with the message shop.Order."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax=syntax)
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    state = file.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=1)
    line = file.message_type.add(name="Line")
    line.field.add(name="sku", number=1, type=Fields.TYPE_STRING, label=OPTIONAL)
    order = file.message_type.add(name="Order")

    def add(name: str, number: int, kind: Any, label: int = OPTIONAL, **more: Any) -> None:
        order.field.add(name=name, number=number, type=kind, label=label, **more)

    add("id", 1, Fields.TYPE_INT64)
    add("total", 2, Fields.TYPE_UINT64)
    add("state", 3, Fields.TYPE_ENUM, type_name=".shop.State")
    add("at", 4, Fields.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
    add("note", 5, Fields.TYPE_MESSAGE, type_name=".google.protobuf.StringValue")
    add("lines", 6, Fields.TYPE_MESSAGE, REPEATED, type_name=".shop.Line")
    add("counts", 7, Fields.TYPE_MESSAGE, REPEATED, type_name=".shop.Order.CountsEntry")
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Fields.TYPE_STRING, label=OPTIONAL)
    entry.field.add(name="value", number=2, type=Fields.TYPE_INT32, label=OPTIONAL)
    order.oneof_decl.add(name="way")
    add("mail", 8, Fields.TYPE_STRING, oneof_index=0)
    add("pickup", 9, Fields.TYPE_BOOL, oneof_index=0)
    add("codes", 10, Fields.TYPE_INT32, REPEATED)
    add("first", 11, Fields.TYPE_MESSAGE, type_name=".shop.Line")
    return file


def schema_of_file(*files: descriptor_pb2.FileDescriptorProto, **settings: Any) -> LogSchema:
    held = base64.b64encode(descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()).decode()
    given = {"version": 1, "index": 0, "format": "protobuf", "definition": held, "message": "shop.Order"}
    return LogSchema(**{**given, **settings})


def order_class(file: descriptor_pb2.FileDescriptorProto) -> Any:
    from google.protobuf import timestamp_pb2, wrappers_pb2

    pool = descriptor_pool.DescriptorPool()
    for module in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def decoder(**settings: Any) -> RecordDecoder:
    return RecordDecoder({1: schema_of_file(file_of(), **settings)}, 1)


def test_each_type_gives_its_column() -> None:
    assert columns_of(schema_of_file(file_of(), key_columns=("id",))) == (
        Column("id", "bigint", False),
        Column("total", "decimal(20,0)", True),
        Column("state", "string", True),
        Column("at", "timestamp", True),
        Column("note", "string", True),
        Column("lines", "array<struct<sku:string>>", True),
        Column("counts", "map<string,int>", True),
        Column("mail", "string", True),
        Column("pickup", "boolean", True),
        Column("codes", "array<int>", True),
        Column("first", "struct<sku:string>", True),
    )


def test_a_message_is_its_row() -> None:
    order = order_class(file_of())(id=7, total=(1 << 64) - 1, state=1, mail="a@b", codes=[3, 1])
    order.at.FromDatetime(dt.datetime(2013, 1, 31, 10, 0, 0, 5, dt.UTC))
    order.note.value = ""
    order.lines.add(sku="x")
    order.counts["b"], order.counts["a"] = 2, 1
    value = order.SerializeToString()
    assert decoder().check([value]) is None
    full, empty = rows_of(decoder(), value, b"")
    assert full == {
        "id": 7,
        "total": Decimal((1 << 64) - 1),
        "state": "PAID",
        "at": dt.datetime(2013, 1, 31, 10, 0, 0, 5, dt.UTC),
        "note": "",
        "lines": [{"sku": "x"}],
        "counts": [("a", 1), ("b", 2)],
        "mail": "a@b",
        "pickup": None,
        "codes": [3, 1],
        "first": None,
    }
    values = {name: value for name, value in empty.items() if value is not None}
    assert values == {"id": 0, "total": Decimal(0), "state": "NEW", "lines": [], "counts": [], "codes": []}


def test_unknown_fields_are_rescued_with_their_path() -> None:
    newer = file_of()
    newer.message_type[1].field.add(name="more", number=20, type=Fields.TYPE_STRING, label=REPEATED)
    newer.message_type[0].field.add(name="size", number=5, type=Fields.TYPE_INT32, label=OPTIONAL)
    order = order_class(newer)(id=1, more=["a", "b"], first={"size": 9})
    order.lines.add(sku="x")
    order.lines.add(sku="y", size=3)
    decoded = decoder().decode(pa.array([order.SerializeToString()], pa.binary()))
    assert decoded.rescued.to_pylist() == ['{"20":["YQ==","Yg=="],"lines":{"1":{"5":3}},"first":{"5":9}}']


def file_with_parts(syntax: str, key: Any) -> descriptor_pb2.FileDescriptorProto:
    """Return `file_of` with a map `parts` from keys of a type to messages Line."""
    file = file_of(syntax)
    order = file.message_type[1]
    order.field.add(
        name="parts", number=12, type=Fields.TYPE_MESSAGE, label=REPEATED, type_name=".shop.Order.PartsEntry"
    )
    entry = order.nested_type.add(name="PartsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=key, label=OPTIONAL)
    entry.field.add(name="value", number=2, type=Fields.TYPE_MESSAGE, label=OPTIONAL, type_name=".shop.Line")
    return file


def test_unknown_fields_in_the_values_of_a_map_are_rescued() -> None:
    file = file_with_parts("proto3", Fields.TYPE_INT32)
    value = b"\x62\x06\x08\x07\x12\x02\x28\x03" + b"\x62\x07\x08\x08\x12\x03\x0a\x01x"  # 7: size 3, 8: sku x
    decoded = RecordDecoder({1: schema_of_file(file)}, 1).decode(pa.array([value], pa.binary()))
    assert decoded.rows["parts"].to_pylist() == [[(7, {"sku": ""}), (8, {"sku": "x"})]]
    assert decoded.rescued.to_pylist() == ['{"parts":{"7":{"5":3}}}']


def test_unknown_fields_in_times_and_wrappers_are_rescued() -> None:
    value = b"\x22\x04\x08\x01\x18\x07" + b"\x2a\x05\x0a\x01x\x10\x09"  # at: second 1, 3: 7; note: x, 2: 9
    decoded = decoder().decode(pa.array([value], pa.binary()))
    assert decoded.rows["note"].to_pylist() == ["x"]
    assert decoded.rescued.to_pylist() == ['{"at":{"3":7},"note":{"2":9}}']


def test_fields_may_have_the_names_of_methods() -> None:
    file = file_of("proto2")
    names = ("ParseFromString", "HasField", "IsInitialized", "FindInitializationErrors", "DESCRIPTOR")
    for number, name in enumerate(names, 20):
        file.message_type[1].field.add(name=name, number=number, type=Fields.TYPE_STRING, label=OPTIONAL)
    decoder = RecordDecoder({1: schema_of_file(file)}, 1)
    row = rows_of(decoder, b"\xa2\x01\x01a" + b"\xaa\x01\x01b")[0]
    assert [row[name] for name in names] == ["a", "b", None, None, None]
    assert decoder.check([b"\xff"]) is not None


def test_extensions_are_rescued_as_unknown_fields() -> None:
    file = file_of("proto2")
    line, order = file.message_type
    for message in (line, order):
        message.extension_range.add(start=100, end=200)
    file.extension.add(
        name="extra", number=100, type=Fields.TYPE_INT32, label=OPTIONAL, extendee=".shop.Order"
    )
    line.extension.add(name="hue", number=101, type=Fields.TYPE_INT32, label=OPTIONAL, extendee=".shop.Line")
    reader = RecordDecoder({1: schema_of_file(file)}, 1)
    decoded = reader.decode(pa.array([b"\x08\x07\xa0\x06\x05\x5a\x03\xa8\x06\x09"], pa.binary()))
    assert decoded.rows.to_pylist()[0]["id"] == 7
    assert decoded.rescued.to_pylist() == ['{"100":5,"first":{"101":9}}']


def test_an_unknown_number_of_an_enum_stays_a_number() -> None:
    assert rows_of(decoder(), b"\x18\x09")[0]["state"] == "9"


def test_an_unknown_number_of_a_closed_enum_is_an_unknown_field() -> None:
    file = file_of("proto2")
    order = file.message_type[1]
    order.field.add(name="states", number=12, type=Fields.TYPE_ENUM, label=REPEATED, type_name=".shop.State")
    reader = RecordDecoder({1: schema_of_file(file)}, 1)
    decoded = reader.decode(pa.array([b"\x18\x09\x60\x01\x60\x09\x60\x00"], pa.binary()))
    (row,) = decoded.rows.to_pylist()
    assert (row["state"], row["states"]) == (None, ["PAID", "NEW"])
    assert decoded.rescued.to_pylist() == ['{"3":9,"12":9}']


def test_an_integer_with_too_many_bits_is_cut_as_protobuf_defines() -> None:
    assert rows_of(decoder(), b"\x50\x81\x80\x80\x80\x10")[0]["codes"] == [1]  # of 2**32 + 1, an int32


def test_damaged_messages_do_not_match() -> None:
    for value in (b"\xff", b"\x08", b"\x2a\x05\x0a\x03\xff\xff\xff", b"{}"):
        assert decoder().check([value]) is not None


def test_a_time_outside_the_calendar_does_not_match() -> None:
    order = order_class(file_of())()
    order.at.seconds = 1 << 50
    found = decoder().check([order.SerializeToString()])
    assert found is not None
    assert found.pointer == "/at"


@pytest.mark.parametrize("nanos", [-1, 1_000_000_000, 2_000_000_000])
def test_a_time_with_more_than_a_second_of_nanoseconds_does_not_match(nanos: int) -> None:
    order = order_class(file_of())()
    order.at.nanos = nanos
    found = decoder().check([order.SerializeToString()])
    assert found is not None
    assert found.pointer == "/at"


def test_missing_required_fields_of_proto2_do_not_match() -> None:
    file = file_of("proto2")
    file.message_type[1].field[0].label = REQUIRED
    schema = schema_of_file(file)
    assert not columns_of(schema)[0].nullable
    found = RecordDecoder({1: schema}, 1).check([order_class(file)(id=1).SerializeToString(), b""])
    assert found is not None
    assert found.position == 1
    assert "id" in found.reason


@pytest.mark.parametrize(
    ("value", "pointer"),
    [
        (b"\x42\x01\xff", "/mail"),
        (b"\x32\x05\x0a\x03\xed\xa0\x80", "/lines/0/sku"),
        (b"\x3a\x05\x0a\x01\xff\x10\x01", "/counts"),
        (b"\x3a\x05\x0a\x01\xff\x10\x01\x3a\x05\x0a\x01a\x10\x01", "/counts"),
    ],
)
@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
def test_texts_that_are_not_utf8_do_not_match(syntax: str, value: bytes, pointer: str) -> None:
    reader = RecordDecoder({1: schema_of_file(file_of(syntax))}, 1)
    found = reader.decode(pa.array([value, b"\x42\x01x"], pa.binary()))
    assert found.positions.to_pylist() == [1]
    assert found.errors == [reader.check([value])]
    assert "UTF-8" in found.errors[0].reason
    if syntax == "proto2":  # proto3 checks before it knows the field
        assert found.errors[0].pointer == pointer


def test_a_required_field_is_named_at_any_key_of_a_map() -> None:
    file = file_with_parts("proto2", Fields.TYPE_STRING)
    file.message_type[0].field[0].label = REQUIRED
    reader = RecordDecoder({1: schema_of_file(file)}, 1)
    for key, pointer in ((b"\xff", "/parts"), (b"k", "/parts/k"), (b"k" * 100, f"/parts/{'k' * 100}")):
        value = b"\x0a" + bytes([len(key)]) + key + b"\x12\x00"
        found = reader.check([b"\x62" + bytes([len(value)]) + value])
        assert found is not None
        assert found.pointer == pointer
        assert found.reason == (
            "The text is not valid UTF-8." if key == b"\xff" else 'The field "sku" is required.'
        )


def test_a_changed_number_is_not_allowed() -> None:
    newer = file_of()
    newer.message_type[1].field[0].number = 30
    found = differences(schema_of_file(file_of()), schema_of_file(newer))
    assert [(each.path, each.kind) for each in found] == [("/id", "number_changed")]


def test_a_wrapper_of_another_encoding_is_refused() -> None:
    """The type of the column is wider, but a reader of the new descriptor finds no value."""
    older, newer = file_of(), file_of()
    for file, name in ((older, "FloatValue"), (newer, "DoubleValue")):
        changed("note", type_name=f".google.protobuf.{name}")(file)
    found = incompatibilities(schema_of_file(older), schema_of_file(newer))
    assert [(each.path, each.kind) for each in found] == [("/note", "encoding_changed")]


Change = Callable[[descriptor_pb2.FileDescriptorProto], None]


def changed(name: str, **fields: Any) -> Change:
    """Return a change of fields of the descriptor of a field."""

    def change(file: descriptor_pb2.FileDescriptorProto) -> None:
        field = next(each for each in file.message_type[1].field if each.name == name)
        for part, value in fields.items():
            setattr(field, part, value)

    return change


def renumbered(file: descriptor_pb2.FileDescriptorProto) -> None:
    file.enum_type[0].value[1].number = 2
    file.enum_type[0].value.add(name="LOST", number=1)


def renamed(file: descriptor_pb2.FileDescriptorProto) -> None:
    file.enum_type[0].value[1].name = "SETTLED"


def signed_values(file: descriptor_pb2.FileDescriptorProto) -> None:
    file.message_type[1].nested_type[0].field[1].type = Fields.TYPE_SINT32


def as_text(file: descriptor_pb2.FileDescriptorProto) -> None:
    state = file.message_type[1].field[2]
    state.ClearField("type_name")
    state.type = Fields.TYPE_STRING


def unwrapped(file: descriptor_pb2.FileDescriptorProto) -> None:
    note = file.message_type[1].field[4]
    note.ClearField("type_name")
    note.type = Fields.TYPE_STRING


def exclusive(file: descriptor_pb2.FileDescriptorProto) -> None:
    changed("id", oneof_index=0)(file)


@pytest.mark.parametrize(
    ("change", "path", "detail"),
    [
        (
            changed("id", type=Fields.TYPE_SINT64),
            "/id",
            "was signed varint, it is zigzag varint.",
        ),
        (
            changed("codes", type=Fields.TYPE_SFIXED32),
            "/codes",
            "was signed varint, it is signed 4 bytes.",
        ),
        (as_text, "/state", "The encoding was varint, it is length and bytes."),
        (
            changed("note", type=Fields.TYPE_GROUP, type_name=".shop.Line"),
            "/note",
            "The encoding was message of length and bytes, it is group.",
        ),
        (unwrapped, "/note", "The encoding was message of length and bytes, it is length and bytes."),
        (signed_values, "/counts", "The encoding was length and bytes to signed varint, it is length"),
        (renumbered, "/state", "Number 1 of the enum was PAID, it is LOST."),
        (renamed, "/state", "Number 1 of the enum was PAID, it is SETTLED."),
        (exclusive, "/id", "It and `mail` exclude each other now: they are in `way`."),
    ],
)
def test_a_change_that_misreads_older_producers_is_refused(change: Change, path: str, detail: str) -> None:
    newer = file_of("proto2")
    change(newer)
    found = incompatibilities(schema_of_file(file_of("proto2")), schema_of_file(newer))
    [difference] = [each for each in found if each.kind == "encoding_changed" and detail in each.detail]
    assert difference.path == path


@pytest.mark.parametrize("label", [OPTIONAL, REPEATED])
@pytest.mark.parametrize("older", NUMBERED)
def test_an_allowed_change_gives_older_records_the_same_numbers(older: int, label: int) -> None:
    """All pairs of types of numbers and texts. As uint64, a negative int32 would be a large number."""

    def schema_of(kind: Any) -> tuple[LogSchema, Any]:
        file = file_of()
        change = changed("codes", type=kind, label=label)
        change(file)
        return schema_of_file(file), order_class(file)

    before, order = schema_of(older)
    edges = [
        edge + by for bits in (0, 31, 32, 63, 64) for edge in (1 << bits, -(1 << bits)) for by in (-1, 0)
    ]
    records = []
    for edge in edges:
        with contextlib.suppress(TypeError, ValueError, OverflowError):  # not a value of the type
            records.append(order(codes=[edge] if label == REPEATED else edge).SerializeToString())
    for newer in NUMBERED:
        after, _ = schema_of(newer)
        if incompatibilities(before, after) == []:
            read = [rows_of(RecordDecoder({1: each}, 1), *records) for each in (before, after)]
            assert read[0] == read[1], (older, newer)


def test_changes_that_all_producers_may_ignore_are_allowed() -> None:
    newer = file_of()
    newer.message_type[1].field[9].options.packed = True
    newer.message_type[1].oneof_decl[0].name = "contact"
    newer.enum_type[0].value.add(name="LOST", number=2)
    line = newer.message_type[0]
    line.oneof_decl.add(name="place")
    line.field[0].oneof_index = 0  # of a oneof without other fields that older records have
    line.field.add(name="shelf", number=2, type=Fields.TYPE_STRING, label=OPTIONAL, oneof_index=0)
    assert incompatibilities(schema_of_file(file_of()), schema_of_file(newer)) == []


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"message": None}, "needs `message`"),
        ({"message": "shop.Nothing"}, "no message"),
        ({"definition": "***"}, "base64"),
        ({"definition": "AAAA"}, "FileDescriptorSet"),
    ],
)
def test_unreadable_descriptors_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(SchemaInvalid, match=reason):
        columns_of(schema_of_file(file_of(), **settings))


def test_a_missing_import_and_a_recursive_message_are_refused() -> None:
    file = file_of()
    file.dependency.append("other.proto")
    with pytest.raises(SchemaInvalid, match=r"lacks other\.proto"):
        columns_of(schema_of_file(file))
    file = file_of()
    file.message_type[0].field.add(
        name="inner", number=9, type=Fields.TYPE_MESSAGE, label=OPTIONAL, type_name=".shop.Line"
    )
    with pytest.raises(SchemaInvalid, match="recursive"):
        columns_of(schema_of_file(file))
