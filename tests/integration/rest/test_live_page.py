"""The live page: its files, the data of its screens, and the page itself in a browser."""

import html
import json
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.api.routes import live_page
from tests.support.cluster import Cluster, eventually, running

FILES = sorted(Path(live_page.__file__).with_name("live").glob("*.[jc]s*"))
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SCRIPTS_MS = 4_000  # of the page's own time


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("live")) as cluster:
        yield cluster


def shown(cluster: Cluster, node: str, address: str, profile: Path) -> str:
    """Return the page's document after its scripts have run in a browser."""
    if BROWSER is None:
        pytest.skip("needs Chromium")
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={profile}",
        f"--virtual-time-budget={SCRIPTS_MS}",
        "--dump-dom",
        cluster.url(node) + address,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_the_page_and_all_that_it_loads_come_from_the_node(cluster: Cluster) -> None:
    for address in ("/ui", "/ui?log=default", "/ui?anything"):
        page = cluster.get("n1", address)
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "://" not in page.text  # nothing comes from elsewhere
        assert "default-src 'self'" in page.headers["content-security-policy"]
        assert "<noscript>" in page.text  # or a reader without JavaScript sees "connecting" permanently
    assert len(FILES) >= 8
    for file in FILES:
        answer = cluster.get("n1", f"/ui/{file.name}")
        assert answer.content == file.read_bytes()
        assert answer.headers["content-type"].startswith("text/")
    assert cluster.get("n1", "/ui/other").status_code == 404
    assert cluster.get("n1", "/ui/..%2Flive_page.py").status_code == 404


def test_the_screens_show_every_node_and_what_has_happened(cluster: Cluster) -> None:
    leader = cluster.leader()
    assert cluster.append(leader, "x").status_code == 200
    follower = cluster.follower()
    overview = cluster.get(follower, "/ui/overview.json").json()
    assert [node["id"] for node in overview["nodes"]] == cluster.ids
    (row,) = [each for each in overview["logs"] if each["name"] == "default"]
    assert (row["leader"], row["replicas"]) == (leader, cluster.ids)
    assert (overview["login"], row["begin_index"]) == (False, 0)
    tail = cluster.get(leader, "/v1/logs/default/tail").json()
    assert row["committed_index"] == tail["committed_index"]
    assert cluster.get(follower, "/ui/led.json").json()["logs"] == []
    assert sum(overview["append_counts"]) >= 1  # at each node, though the leader alone counts appends

    def caught_up() -> bool:
        """The leader alone knows the lag, and another node shows it too."""
        logs = cluster.get(follower, "/ui/overview.json").json()["logs"]
        return [each["lag_records"] for each in logs if each["name"] == "default"] == [0]

    eventually(caught_up, what="the lag is known at a follower")
    log = cluster.get(follower, "/ui/log.json").json()
    roles = {node["id"]: node["status"]["role"] for node in log["nodes"]}
    assert [node for node, role in roles.items() if role == "leader"] == [leader]
    assert log["size_bytes"] > 0
    answer = cluster.get(follower, "/ui/log.json?part=epochs").json()
    epochs = answer["epochs"]
    assert answer["epoch_count"] == len(epochs)
    assert epochs[-1]["leader"] == leader
    events = cluster.get(follower, "/ui/log.json?part=events").json()["events"]
    assert events[-1]["kind"] == "start"
    assert "watermarks" not in {event["kind"] for event in events}
    cluster.call("PUT", leader, "/v1/logs/default/cursors/mine", json={"index": 1})
    cursors = cluster.get(leader, "/ui/log.json?part=cursors").json()["cursors"]
    assert cursors == [{"name": "mine", "index": 1, "fence": False}]
    assert cluster.get("n1", "/ui/log.json?log=none").json()["code"] == "log-not-found"


def test_the_page_shows_json_with_its_numbers_as_they_are_stored(tmp_path: Path) -> None:
    """`pretty` in a browser: what JavaScript would read as null, round or leave out stays."""
    if BROWSER is None:
        pytest.skip("needs Chromium")
    texts = [
        '{"a":1e999,"b":[12345678901234567890,1.00,-0.0],"a":"x,\\\\\\"{}","e":{},"l":[],"n":[[1],[{"c":null}]]}',
        "[]",
        '"text"',
        "1e999",
        '{"a": NaN}',
        "not JSON",
    ]
    page = tmp_path / "page.html"
    page.write_text(
        f"<pre></pre><script type=module>import {{ pretty }} from '{FILES[0].parent}/records.js';"
        f"const shown = {json.dumps(texts)}.map(pretty);"
        "document.querySelector('pre').textContent = JSON.stringify(shown);</script>"
    )
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"]
    command = [BROWSER, *flags, f"--user-data-dir={tmp_path / 'profile'}", page.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    whole, *others = json.loads(html.unescape(shown.split("<pre>")[1].split("</pre>")[0]))
    lines = [line.strip() for line in whole.splitlines()]
    assert lines[:3] == ["{", '"a": 1e999,', '"b": [']
    assert [line.strip(",") for line in lines[3:6]] == ["12345678901234567890", "1.00", "-0.0"]
    assert lines[7:10] == ['"a": "x,\\\\\\"{}",', '"e": {},', '"l": [],']
    assert whole.splitlines()[-6:] == ["      {", '        "c": null', "      }", "    ]", "  ]", "}"]
    assert others == texts[1:]


def test_a_browser_shows_the_logs_and_the_records(cluster: Cluster, tmp_path: Path) -> None:
    leader = cluster.leader()
    assert cluster.append(leader, '{"city": "Łódź"}', "<b>not markup</b>").status_code == 200
    asked = {"format": "json", "definition": "city STRING COMMENT '<i>'", "compatibility": "none"}
    assert cluster.call("PUT", leader, "/v1/logs/default/schema", json=asked).status_code == 200
    logs = shown(cluster, cluster.follower(), "/ui", tmp_path / "profile")
    assert '<a href="#/logs/default">default</a>' in logs
    assert "live from" in logs
    assert f"</span>{leader}</span>" in logs
    newest = f"newest {secrets.token_hex(4)}"
    assert cluster.append(leader, newest).status_code == 200
    records = shown(cluster, leader, "/ui?log=default#/logs/default/records", tmp_path / "profile")
    assert newest in records
    assert '{"city": "Łódź"}' in records
    assert '<td class="key" data-title="Key">' in records  # narrow, or the value has no room on a telephone
    assert "&lt;b&gt;not markup&lt;/b&gt;" in records
    schema = shown(cluster, leader, "/ui?log=default#/logs/default/schema", tmp_path / "profile")
    assert "Columns of version" in schema
    assert "<td>city</td>" in schema
    assert "&lt;i&gt;" in schema


def test_an_address_with_a_stray_percent_sign_shows_the_page(cluster: Cluster, tmp_path: Path) -> None:
    """decodeURIComponent refuses it: without a first view, no poll would begin."""
    page = shown(cluster, cluster.leader(), "/ui#/logs/100%", tmp_path / "profile")
    found = re.search(r'<span id="pulse"[^>]*>(.*?)</span>', page)
    assert found is not None
    assert found[1].endswith(
        ("live from n1", "got '100%'")
    )  # in turn: the node answers, and refuses the name
    assert "<h1>100%</h1>" in page


def test_a_node_that_is_gone_is_shown_as_unreachable_with_an_unknown_lag(
    cluster: Cluster, tmp_path: Path
) -> None:
    gone, seen_by = cluster.follower(), cluster.leader()
    before_ms = time.time_ns() // 1_000_000
    cluster.kill(gone)

    def silent() -> bool:
        nodes = cluster.get(seen_by, "/ui/log.json").json()["nodes"]
        return [node["id"] for node in nodes if node["status"] is None] == [gone]

    def unreachable() -> dict[str, Any] | None:
        peers = cluster.status(seen_by)["peers"]
        return next((peer for peer in peers if "unreachable_since_ms" in peer), None)

    eventually(silent, what="the node is shown as down")
    found = eventually(unreachable, what="the leader has noticed it")
    assert found["id"] == gone
    assert found["lag_bytes"] is None
    assert found["watermark"] >= 0
    assert 0 <= found["unreachable_since_ms"] - before_ms + 2_000 < 5_000
    logs = cluster.get(seen_by, "/ui/overview.json").json()["logs"]
    (row,) = [each for each in logs if each["name"] == "default"]
    assert row["lag_records"] is None
    page = shown(cluster, seen_by, "/ui?log=default#/logs/default/overview", tmp_path / "profile")
    assert re.search(r"no answer since \d\d:\d\d:\d\d", page)
    assert page.count("no answer since") == 1
    assert '<td class="number">unknown</td>' in page
