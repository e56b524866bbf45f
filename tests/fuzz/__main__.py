"""Sends random requests to a node in this process, and prints each answer that breaks the contract.

    python -m tests.fuzz --minutes 10 [--seed N]

Checked of every answer: no 500, no exception in the application, a status and a content type that OpenAPI
names for the route, every refusal a problem document with a known code, a request id, valid JSON. A case is
repeated by its seed: `--seed N --cases 1`.
"""

import argparse
import asyncio
import itertools
import json
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from app.errors import PROBLEMS
from tests.fuzz.requests import Case, cases_of
from tests.support.in_process import InProcess, node_in_process

CASES_A_NODE = 3_000  # then a new node: no state of a case is needed by a later one
CASE_TIMEOUT_S = 15.0


async def complaint_about(node: InProcess, document: dict[str, Any], case: Case) -> tuple[str, int]:
    """Return what is wrong with the answer, empty if nothing is, and its status."""
    request = node.client.build_request(case.method, case.url, headers=case.headers, content=case.body)
    try:
        async with asyncio.timeout(CASE_TIMEOUT_S):
            answer = await node.client.send(request)
    except TimeoutError:
        streams = any(b"event-stream" in value for _, value in case.headers)
        return ("" if streams else "no answer in time"), 0
    except AssertionError:  # of the transport
        return "the answer was not complete", 0
    return _judged(document, case, answer), answer.status_code


def _judged(document: dict[str, Any], case: Case, answer: httpx.Response) -> str:
    status, kind = answer.status_code, answer.headers.get("content-type", "").partition(";")[0]
    if status == 500:
        return f"500: {answer.text[:300]}"
    if len(answer.headers.get_list("x-request-id")) != 1:
        return "not exactly one X-Request-Id"
    is_not_ready = (case.template, status) == ("/readyz", 503)  # a report, not a refusal
    if status >= 400 and case.method != "HEAD" and not is_not_ready:
        if kind != "application/problem+json":
            return f"{status} with {kind}"
        problem = answer.json()
        if problem["code"] not in PROBLEMS or problem["status"] != status:
            return f"unknown problem {problem}"
    elif kind == "application/json" and case.method != "HEAD":
        answer.json()
    if not case.names_route:
        return ""
    responses = document["paths"][case.template][case.method.lower()]["responses"]
    if str(status) not in responses and status not in (405, 429):
        return f"{status} is not in OpenAPI: {answer.text[:200]}"
    content = responses.get(str(status), {}).get("content")
    if content and answer.content and kind not in content:
        return f"{status} with {kind}, OpenAPI names {sorted(content)}"
    return ""


class _Exceptions(logging.Handler):
    """Tracebacks that the service has logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.lines.append(
                f"{record.getMessage()}: {logging.Formatter().formatException(record.exc_info)}"
            )


async def run(minutes: float, first_seed: int, most: int | None) -> int:
    logged = _Exceptions()
    logging.basicConfig(level=logging.WARNING, handlers=[logged], force=True)
    ends = time.monotonic() + minutes * 60
    seeds = itertools.islice(itertools.count(first_seed), most)
    statuses: Counter[int] = Counter()
    seen: Counter[str] = Counter()
    exhausted = False
    while not exhausted and time.monotonic() < ends:
        with tempfile.TemporaryDirectory() as folder:
            async with node_in_process(Path(folder)) as node:
                document = (await node.client.get("/v1/openapi.json")).json()
                for count in itertools.count():
                    seed = next(seeds, None)
                    if seed is None or time.monotonic() >= ends:
                        exhausted = True
                        break
                    case = cases_of(document, random.Random(seed))
                    wrong, status = await complaint_about(node, document, case)
                    wrong = "; ".join(filter(None, (wrong, *logged.lines)))
                    logged.lines.clear()
                    statuses[status] += 1
                    if wrong:
                        kind = f"{case.method} {case.template}: {wrong[:60]}"
                        seen[kind] += 1
                        if seen[kind] <= 2:
                            sys.stdout.write(f"seed {seed}: {case}\n    {wrong}\n")
                            sys.stdout.flush()
                    if count >= CASES_A_NODE:
                        break
    report = {"cases": statuses.total(), "statuses": dict(sorted(statuses.items())), "wrong": seen.total()}
    sys.stdout.write(json.dumps(report) + "\n")
    return 1 if seen else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int)
    given = parser.parse_args()
    return asyncio.run(run(given.minutes, given.seed, given.cases))


if __name__ == "__main__":
    sys.exit(main())
