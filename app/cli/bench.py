"""`commitlog bench`: throughput and latency of appends from one client."""

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from app.cli.context import (
    CommandFailed,
    ExitCode,
    Target,
    person_watches,
    print_json,
    print_table,
    target_options,
)
from app.durations import Seconds
from app.media_types import JSON

_JSON = {"Content-Type": JSON}
_TIMEOUT = aiohttp.ClientTimeout(total=30)


@dataclass
class Tally:
    """Results of the workers. latencies: seconds, of acknowledged appends only."""

    latencies: list[float] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)

    def refuse(self, code: str) -> None:
        self.refused[code] = self.refused.get(code, 0) + 1


@click.command("bench")
@click.option(
    "--seconds",
    type=Seconds(0.1, 600),
    default=10.0,
    show_default=True,
    help="Duration of the load.",
)
@click.option(
    "--in-flight", type=click.IntRange(1, 4096), default=64, show_default=True, help="Concurrent appends."
)
@click.option(
    "--records", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Records per append."
)
@click.option(
    "--size", type=click.IntRange(1, 1 << 20), default=1024, show_default=True, help="Bytes per record."
)
@click.option(
    "--acks",
    type=click.Choice(["leader", "quorum", "all"]),
    default="quorum",
    show_default=True,
    help="Replicas that must hold a record before it is acknowledged.",
)
@target_options
def bench_command(target: Target, seconds: float, in_flight: int, records: int, size: int, acks: str) -> None:
    """Measure the throughput and latency of appends to a log. The records stay in the log.

    \b
    Examples:
      commitlog bench --seconds 5 --size 100
      commitlog bench --records 100 --in-flight 16 --json
    """
    with target.client() as client:
        status = client.status()
        nodes = client.cluster()["nodes"]
    urls = [node["url"] for node in nodes if node["id"] == status["leader"]]
    url = urls[0] if urls else target.endpoints[0]
    body = b'{"records":[' + b",".join([b'{"value":"' + b"x" * size + b'"}'] * records) + b"]}"
    place = f"{url}/v1/logs/{target.log}/records?acks={acks}"
    headers = _JSON if target.token is None else {**_JSON, "Authorization": f"Bearer {target.token}"}
    tally, took_s = asyncio.run(_run(place, body, headers, seconds, in_flight))
    figures = _figures(tally, took_s, records, size) | {"in_flight": in_flight, "acks": acks, "url": url}
    if target.as_json:
        print_json(figures)
    else:
        print_table(_table(figures))
    if not tally.latencies:
        raise CommandFailed(f"no append was acknowledged; {_shown(tally.refused)}", ExitCode.UNAVAILABLE)


async def _run(
    place: str, body: bytes, headers: dict[str, str], seconds: float, in_flight: int
) -> tuple[Tally, float]:
    """Keep `in_flight` appends open until the time is over, and wait for the last ones. A worker whose append
    can never succeed ends."""
    tally = Tally()
    started = time.perf_counter()
    end = started + seconds

    async def work(session: aiohttp.ClientSession) -> None:
        while (sent := time.perf_counter()) < end:
            try:
                async with session.post(place, data=body, headers=headers) as answer:
                    if answer.status < 300:
                        await answer.read()
                        tally.latencies.append(time.perf_counter() - sent)
                    else:
                        document = await answer.json(content_type=None)
                        tally.refuse(str(document.get("code")))
                        if answer.status < 500 and not document.get("retryable"):
                            return
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                tally.refuse(type(error).__name__)
                await asyncio.sleep(0.05)

    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT) as session,
        asyncio.TaskGroup() as tasks,  # inside: after Ctrl-C no worker outlives the session
    ):
        workers = [tasks.create_task(work(session)) for _ in range(in_flight)]
        if person_watches():
            await _show(tally, workers, started, seconds)
    return tally, time.perf_counter() - started


async def _show(tally: Tally, workers: Sequence[asyncio.Task[None]], started: float, seconds: float) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr)) as progress:
        task = progress.add_task("appending", total=seconds)
        while (passed := time.perf_counter() - started) < seconds and not all(
            worker.done() for worker in workers
        ):
            rate = len(tally.latencies) / max(passed, 0.001)
            progress.update(task, completed=passed, description=f"{rate:,.0f} appends/s")
            await asyncio.sleep(0.2)


def _figures(tally: Tally, took_s: float, records: int, size: int) -> dict[str, Any]:
    ordered = sorted(tally.latencies)
    appends = len(ordered)
    return {
        "appends": appends,
        "seconds": round(took_s, 3),
        "appends_per_s": round(appends / took_s),
        "records_per_s": round(appends * records / took_s),
        "mib_per_s": round(appends * records * size / took_s / (1 << 20), 1),
        "p50_ms": _percentile_ms(ordered, 0.50),
        "p99_ms": _percentile_ms(ordered, 0.99),
        "max_ms": _percentile_ms(ordered, 1.0),
        "refused": tally.refused,
    }


def _percentile_ms(ordered: Sequence[float], share: float) -> float | None:
    if not ordered:
        return None
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):  # refusals by code
        return ", ".join(f"{code}: {count:,}" for code, count in value.items()) or "none"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _table(figures: dict[str, Any]) -> Table:
    table = Table("figure", "value", box=SIMPLE_HEAD)
    for name, value in figures.items():
        table.add_row(name.replace("_", " ").replace("mib", "MiB"), _shown(value))
    return table
