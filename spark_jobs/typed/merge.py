"""Clauses of MERGE by names of columns: `UPDATE SET *` and `INSERT *` fail where a name has a backtick."""

from collections.abc import Iterable

from spark_jobs.tables.table import quoted_name


def update_clause(columns: Iterable[str]) -> str:
    """Return the clause that sets these columns of `t` from `s`."""
    return f"UPDATE SET {', '.join(f't.{name} = s.{name}' for name in map(quoted_name, columns))}"


def insert_clause(columns: Iterable[str]) -> str:
    """Return the clause that inserts these columns of `s`."""
    names = list(map(quoted_name, columns))
    return f"INSERT ({', '.join(names)}) VALUES ({', '.join(f's.{name}' for name in names)})"
