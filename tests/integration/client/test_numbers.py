"""Numbers of `value_json` that a float cannot hold, or that JSON does not have: never stored as null."""

import csv
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import parquet

from app.cli.main import cli
from app.client import CommitlogClient
from tests.support.cluster import Cluster

TEXT = '{"a":1e999,"b":[-1E+400,1.50,' + "1" * 5_000 + '],"c":12345678901234567890123,"d":1e-999,"e":-0.0e-9}'


@pytest.fixture
def client(cluster: Cluster) -> Any:
    with CommitlogClient(cluster.url(cluster.leader()), log="other") as client:
        yield client


def run(cluster: Cluster, *arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, [*arguments, "-e", cluster.url("n1"), "-l", "other"])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


@pytest.mark.parametrize("form", ["ndjson", "csv"])
def test_a_number_beyond_a_float_is_appended_and_read_as_it_is(
    cluster: Cluster, client: CommitlogClient, tmp_path: Path, form: str
) -> None:
    file = tmp_path / f"a.{form}"
    if form == "ndjson":
        file.write_text(f'{{"value_json": {TEXT}}}\n')
    else:
        with file.open("w", newline="") as out:
            csv.writer(out).writerows([["value_json"], [TEXT]])
    next_index = client.tail()["next_index"]
    run(cluster, "append", "--file", str(file))
    (stored,) = client.read(from_index=next_index).records
    assert stored["value"] == TEXT

    (record,) = client.read(from_index=next_index, encoding="json").records
    found = record["value_json"]
    assert found["a"] == Decimal("1e999")
    assert found["b"] == [Decimal("-1e400"), 1.5, Decimal("1" * 5_000)]
    assert [type(number) for number in found["b"]] == [Decimal, float, Decimal]
    assert found["c"] == 12345678901234567890123
    assert found["d"] == Decimal("1e-999")
    assert isinstance(found["e"], float)

    read = ["read", "--from-index", str(next_index), "--encoding", "json", "--format"]
    shown = {form: run(cluster, *read, form) for form in ("text", "json", "ndjson", "csv")}
    row = next(csv.DictReader(io.StringIO(shown["csv"])))
    texts = [shown["text"].split("  ")[-1], row["value"]]
    documents = [json.loads(text, parse_float=Decimal, parse_int=Decimal) for text in texts]
    page = json.loads(shown["json"], parse_float=Decimal, parse_int=Decimal)
    line = json.loads(shown["ndjson"], parse_float=Decimal, parse_int=Decimal)
    documents += [page["records"][0]["value_json"], line["value_json"]]
    expected = json.loads(TEXT, parse_float=Decimal, parse_int=Decimal)
    assert documents == [expected] * 4


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_does_not_have_is_refused(client: CommitlogClient, number: float) -> None:
    before = client.tail()["next_index"]
    for record in (
        {"value_json": number},
        {"value_json": {"a": [1, {"b": (number,)}]}},
        {"value": "v", "timestamp": number},
    ):
        with pytest.raises(ValueError, match=f"must not contain {number}, which JSON does not have"):
            client.append([record])
    assert client.tail()["next_index"] == before


def test_files_with_such_numbers_are_refused_with_their_place(cluster: Cluster, tmp_path: Path) -> None:
    lines = tmp_path / "a.ndjson"
    lines.write_text('{"value_json": 1}\n{"value_json": {"a": NaN}}\n')
    assert "line 2 is not JSON: NaN is not a number of JSON" in run(
        cluster, "append", "--file", str(lines), code=2
    )
    rows = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"id": [1], "price": [float("nan")]}), rows)
    refused = run(cluster, "append", "--file", str(rows), code=2)
    assert "a row has a number that JSON does not have (id = 1, price = nan)" in refused
    texts = tmp_path / "a.csv"
    texts.write_text("value_json\nInfinity\n")
    assert "line 2: value_json is not JSON" in run(cluster, "append", "--file", str(texts), code=2)
