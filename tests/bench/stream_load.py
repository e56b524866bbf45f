"""Load of `records:stream`: single records, a window of appends without an answer. One JSON line.

python -m tests.bench.stream_load --url http://127.0.0.1:8081 [--window 4096] [--seconds 3] [--size 1024]
"""

import argparse
import json
import socket
import time
from collections import deque
from urllib.parse import urlsplit

from tests.bench.systems.local_cluster import print_figure
from tests.support.programs import run_program

LINES_A_WRITE = 64
ANSWER = b'"first_index"'


def measure(url: str, window: int, seconds: float, size: int) -> dict[str, object]:
    """Send for `seconds`, then wait for the answers; a rate counts answered appends until the last one."""
    place = urlsplit(url)
    line = json.dumps({"value": "v" * size}).encode() + b"\n"
    block = line * LINES_A_WRITE
    chunk = b"%x\r\n%s\r\n" % (len(block), block)
    sent = answered = errors = 0
    times: deque[float] = deque()
    took_ms: list[float] = []
    with socket.create_connection((place.hostname, place.port), timeout=30) as connection:
        connection.sendall(
            b"POST /v1/logs/default/records:stream HTTP/1.1\r\nHost: node\r\n"
            b"Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        began = time.monotonic()
        rest = b""
        while True:
            open_now = time.monotonic() - began < seconds
            while open_now and sent - answered + LINES_A_WRITE <= window:
                connection.sendall(chunk)
                times.append(time.monotonic())
                sent += LINES_A_WRITE
            if sent == answered:
                break
            data = connection.recv(1 << 18)
            if not data:
                raise ConnectionError(f"the stream ended after {answered} of {sent} answers")
            rest += data
            found = rest.count(ANSWER)
            errors += rest.count(b'"type"')
            rest = rest[-len(ANSWER) + 1 :]
            before, answered = answered // LINES_A_WRITE, answered + found
            now = time.monotonic()
            took_ms += [(now - times.popleft()) * 1e3 for _ in range(answered // LINES_A_WRITE - before)]
            if errors:
                raise RuntimeError(data.decode(errors="replace")[:500])
        took_s = time.monotonic() - began
    took_ms.sort()
    return {
        "requests": answered,
        "records_per_s": round(answered / took_s, 1),
        "p50_ms": round(took_ms[len(took_ms) // 2], 3),
        "p99_ms": round(took_ms[len(took_ms) * 99 // 100], 3),
        "errors": 0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--window", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--size", type=int, default=1024)
    options = parser.parse_args()
    print_figure(**measure(options.url, options.window, options.seconds, options.size))


if __name__ == "__main__":
    run_program(main)
