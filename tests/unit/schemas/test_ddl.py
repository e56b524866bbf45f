"""Spark DDL to columns, and back."""

import pytest

from app.schemas import Column, SchemaInvalid, check_new, columns_of, differences
from tests.unit.schemas.support import schema_of


def test_each_type_has_its_spelling() -> None:
    definition = """
        a BOOLEAN, b byte, c SMALLINT NOT NULL, d integer, e long COMMENT 'it''s', f REAL, g double,
        h dec(5, 2), i decimal, j STRING, k binary, l date, m timestamp_ltz, n timestamp_ntz,
        `o``p` array<map<string, int>>,
        q: struct<`x.y`: int NOT NULL, z struct<a: numeric(38)>> NOT NULL COMMENT "two\\nlines"
    """
    found = columns_of(schema_of(definition))
    assert [column.type for column in found] == [
        *(
            "boolean",
            "tinyint",
            "smallint",
            "int",
            "bigint",
            "float",
            "double",
            "decimal(5,2)",
            "decimal(10,0)",
        ),
        *("string", "binary", "date", "timestamp", "timestamp_ntz", "array<map<string,int>>"),
        "struct<`x.y`:int,z:struct<a:decimal(38,0)>>",
    ]
    assert found[4] == Column("e", "bigint", True, "it's")
    assert [column.name for column in found if not column.nullable] == ["c", "q"]
    assert found[14].name == "o`p"


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ("", "expected a column name"),
        ("a", "expected a type"),
        ("a int b int", "expected NOT NULL"),
        ("a int,", "expected a column name"),
        ("a varchar(10)", "a type of this list"),
        ("a interval", "a type of this list"),
        ("a variant", "a type of this list"),
        ("a array<int", "expected `>`"),
        ("a decimal(39,0)", "precision"),
        ("a decimal(5,6)", "precision"),
        ("a int DEFAULT 1", "expected NOT NULL"),
        ("a int; drop", "unexpected"),
        ("a int) b", "expected `,` or the end"),
        ("a map<int,int>", "string keys"),
        ("a int, A int", "same column"),
        ("a struct<x: int, X: int>", "same column"),
        ("_TERM int", "every typed table"),
        ("a " + "array<" * 40 + "int" + ">" * 40, "32 levels"),
        (", ".join(f"c{at} int" for at in range(2_001)), "2000 fields"),
    ],
)
def test_a_fault_is_reported(definition: str, reason: str) -> None:
    with pytest.raises(SchemaInvalid) as refused:
        columns_of(schema_of(definition))
    assert reason in refused.value.reason


@pytest.mark.parametrize(
    ("one", "other"), [("s", "\u017f"), ("I", "\u0131"), ("i", "\u0130"), ("\u00b5", "\u03bc")]
)
def test_a_new_schema_has_no_names_that_spark_takes_for_one(one: str, other: str) -> None:
    for definition in (f"`{one}` int, `{other}` int", f"a struct<`{one}`: int, `{other}`: int>"):
        with pytest.raises(SchemaInvalid, match="same column"):
            check_new(schema_of(definition))
    kinds = [each.kind for each in differences(schema_of(f"`{one}` int"), schema_of(f"`{other}` int"))]
    assert kinds == ["type_changed", "removed"]
    check_new(schema_of("`\u00df` int, ss int, `i\u0307` int, i int"))
    with pytest.raises(SchemaInvalid, match="`_index` and `_\u0131ndex` are the same"):
        check_new(schema_of("`_\u0131ndex` int"))


@pytest.mark.parametrize(
    ("settings", "pointer"),
    [
        ({"key_columns": ("b",)}, "/key_columns/0"),
        ({"key_columns": ("a", "a")}, "/key_columns/1"),
        ({"key_columns": ("d",)}, "/key_columns/0"),
        ({"key_columns": ("l",)}, "/key_columns/0"),
        ({"cluster_by": ("x",)}, "/cluster_by/0"),
        ({"cluster_by": ("l",)}, "/cluster_by/0"),
        ({"cluster_by": ("a", "a")}, "/cluster_by/1"),
        ({"message": "M"}, "/message"),
        ({"format": "xml"}, "/format"),
    ],
)
def test_settings_name_columns_that_fit(settings: dict[str, object], pointer: str) -> None:
    with pytest.raises(SchemaInvalid) as refused:
        columns_of(schema_of("a int, d double, l array<int>", **settings))
    assert refused.value.pointer == pointer
