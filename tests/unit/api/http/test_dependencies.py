"""Routes and their dependencies run on the event loop."""

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from tests.support.in_process import node_in_process


def _calls(dependant: Dependant) -> Iterator[Any]:
    yield dependant.call
    for each in dependant.dependencies:
        yield from _calls(each)


def test_no_call_of_a_route_needs_a_thread(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            routes = [route for route in node.routes if isinstance(route, APIRoute)]
            assert routes
            blocking = {
                (route.path, call)
                for route in routes
                for call in _calls(route.dependant)
                if not inspect.iscoroutinefunction(call)
            }
            assert not blocking

    asyncio.run(run())
