"""Figures that commands print: of `bench` and of `verify`."""

import time
from typing import Any

from tests.unit.cli.fake_service import Asked, Scripted, fake_service, problem
from tests.unit.cli.test_commands import run


def _bench_service(refusal: Scripted) -> Any:
    cluster = {"id": "c", "logs": ["default"], "limits": {}, "nodes": []}
    status = {"log": "default", "leader": "n1"}

    def reply(asked: Asked) -> Scripted:
        if asked.method == "POST":
            return refusal
        return Scripted(200, cluster if asked.path.endswith("/cluster") else status)

    return fake_service(reply)


def test_a_bench_whose_appends_are_refused_for_good_ends_at_once_with_the_reason() -> None:
    with _bench_service(problem("schema-mismatch", 422, "not_applied", retryable=False)) as node:
        begun = time.monotonic()
        result = run("bench", "--seconds", "60", "--in-flight", "4", url=node.url)
    assert time.monotonic() - begun < 30
    assert result.exit_code == 5
    assert result.stderr == "commitlog: no append was acknowledged; schema-mismatch: 4\n"
    assert "None" not in result.stdout
    assert "MiB per s" in result.stdout


def test_the_table_of_verify_has_last_indexes_as_its_verdict() -> None:
    replicas = [
        {"node": "n1", "state": "same", "until_index": 22, "first_difference": None},
        {"node": "n2", "state": "unreachable", "until_index": 0, "first_difference": None},
    ]
    result = {
        "log": "default", "until_index": 22, "has_more": False, "equal": True, "complete": False,
        "first_difference": None, "groups": [], "replicas": replicas, "batches": 17, "bytes": 12_392,
    }  # fmt: skip

    def reply(asked: Asked) -> Scripted:
        return Scripted(200, result if asked.method == "POST" else {"committed_index": 21})

    with fake_service(reply) as node:
        shown = run("verify", url=node.url).stdout
    rows = [line.split() for line in shown.splitlines()]
    assert ["n1", "same", "21"] in rows
    assert ["n2", "unreachable"] in rows
    assert "up to index 21" in shown
