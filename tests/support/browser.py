"""Scripts of the live page, run in a browser without a node."""

import json
import re
import shutil
import subprocess
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from app.api.routes import live_page

SCRIPTS = Path(live_page.__file__).with_name("live")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
POLL_S = 0.01  # of the server, which finds out then that it is to end
PAGE = """<!doctype html><div id="holder"></div><pre id="result"></pre><script src="uplot.js"></script>
<script type="module">
import { byId, h, table, update } from "./dom.js";
import { LineChart, Series } from "./charts.js";
const holder = byId("holder");
const result = {};
%s
byId("result").textContent = JSON.stringify(result);
</script>"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def result_of(site: Path, script: str, *, width: int = 1280) -> dict[str, object]:
    """Return what the script has put into `result`. width: of the window, pixels."""
    if BROWSER is None:
        pytest.skip("needs Chromium")
    (site / "test.html").write_text(PAGE % script, encoding="utf-8")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site))) as server:
        Thread(target=server.serve_forever, args=(POLL_S,), daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/test.html"
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={site / 'profile'}"]
        options.append(f"--window-size={width},900")
        command = [BROWSER, *options, "--virtual-time-budget=5000", "--dump-dom", address]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        server.shutdown()
    found = re.search(r'<pre id="result">(.*?)</pre>', shown, re.DOTALL)
    assert found is not None, shown
    answer: dict[str, object] = json.loads(found[1].replace("&gt;", ">").replace("&lt;", "<"))
    return answer
