"""Schemas of logs: from the bytes of a record to the columns of a typed table.

schema.py       one version of a schema; Column; the version that a record names
data_types.py   the tree of types that all formats are read into, and its Spark DDL
json_schema.py  JSON Schema to types; ddl.py: Spark DDL to types
columns.py      columns of a schema as DDL and as an Arrow schema
differences.py  differences between two versions, and which of them tables follow in place
decoder.py      records to columns, or to mismatches; json_text.py and json_values.py: the rules of JSON
infer.py        a JSON Schema proposed from samples

Pure: no clock, file or socket. pyarrow and the packages of the formats are imported when they are needed.
"""

from app.schemas.columns import arrow_schema_of, check_new, columns_of
from app.schemas.decoder import Decoded, RecordDecoder
from app.schemas.differences import Difference, differences, incompatibilities
from app.schemas.errors import Mismatch, SchemaInvalid, SchemaLibraryMissing
from app.schemas.infer import SamplesUnusable, propose
from app.schemas.schema import Column, LogSchema, version_of

__all__ = [
    "Column",
    "Decoded",
    "Difference",
    "LogSchema",
    "Mismatch",
    "RecordDecoder",
    "SamplesUnusable",
    "SchemaInvalid",
    "SchemaLibraryMissing",
    "arrow_schema_of",
    "check_new",
    "columns_of",
    "differences",
    "incompatibilities",
    "propose",
    "version_of",
]
