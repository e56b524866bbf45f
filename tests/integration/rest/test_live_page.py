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
from tests.support.browser import result_of
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

    eventually(silent, what="the node has no status")
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
    assert ">no status</span>" in page  # a node that is slow, or repairs its copy, is not down
    assert '<td class="number" data-title="Bytes behind">unknown</td>' in page


def test_indexes_that_a_number_cannot_hold_are_shown_as_they_are(site: Path) -> None:
    script = """
const { parse, json } = await import("./service.js");
const { logView } = await import("./log.js");
const { logsView } = await import("./logs.js");
document.body.append(h("dialog", { id: "dialog" }), h("div", { id: "toasts" }));
const [first, last] = ["9007199254740993", "9007199254740995"];
const ends = `"begin_index": ${first}, "end_index": ${last}, "committed_index": ${last}`
  + ', "next_index": 9007199254740996';
const status = `{"node": "n1", "role": "leader", "term": 1, ${ends}`
  + `, "peers": [{"id": "n2", "watermark": ${first}}]}`;
const epoch = `{"leader": "n1", "start_index": ${first}, "end_index": null, "started_ms": 1}`;
const event = `{"seq": 1, "kind": "x", "data": {"at": ${first}, "peers": {"n1": ${last}}}}`;
const record = `{"index": ${last}, "offset": ${first}, "timestamp": 1, "value": "v"}`;
const state = `{${ends}, "now_ms": 1, "nodes": [{"id": "n1", "status": ${status}}, {"id": "n2"}]`
  + `, "size_bytes": ${first}, "epoch_count": 1, "epochs": [${epoch}], "events": [${event}]`
  + `, "cursors": [{"name": "c", "index": ${first}}], "records": [${record}], "has_more": false`
  + `, "retention": {"bytes": ${first}}, "replicas": [], "tables": [{"materialized_index": ${first}}]}`;
const asked = [];
window.fetch = async (path, { body } = {}) => { asked.push([path, body]); return new Response(state); };
const pause = () => new Promise((resolve) => setTimeout(resolve, 20));
const cells = () => [...holder.querySelectorAll("td")].map((each) => each.textContent);
for (const tab of ["overview", "records", "epochs", "events", "tables", "cursors", "settings"]) {
  const view = logView("orders", tab);
  holder.replaceChildren(view.element);
  for (let turn = 0; turn < 2; turn += 1) { await view.refresh({ logs: [] }); await pause(); }
  result[tab] = cells();
}
[...holder.querySelectorAll("button")].find((each) => each.textContent === "Trim").click();
byId("dialog").querySelector("input").value = first;
byId("dialog").querySelector("form").requestSubmit();
await pause();
result.trim = asked.find(([path]) => path.endsWith(":trim"))[1];
const view = logsView();
holder.replaceChildren(view.element);
const logs = { nodes: [], append_counts: [], append_bounds_s: [] };
logs.logs = parse(`[{"name": "a", "replicas": [], ${ends}}]`);
for (const now_ms of [1, 2]) view.refresh({ ...logs, now_ms });
result.logs = cells();
result.same = json(parse(`[${first}, 1.5, 7]`));"""
    shown = result_of(site, script)
    first, last = "9,007,199,254,740,993", "9,007,199,254,740,995"
    expected = {
        "overview": [first, last, last],
        "records": [last],
        "epochs": [first, "open", "3"],
        "events": ['at 9007199254740993, peers {"n1":9007199254740995}'],
        "tables": [first],
        "cursors": [first, "3"],
        "settings": ["8192 TiB"],
        "logs": [f"{first} to {last}"],
    }
    for view, texts in expected.items():
        assert set(texts) <= set(shown[view]), (view, shown[view])  # type: ignore[call-overload]
    assert shown["trim"] == '{"until_index":9007199254740993}'
    assert shown["same"] == "[9007199254740993,1.5,7]"


def test_the_ends_of_a_log_and_a_failed_job_are_shown(site: Path) -> None:
    script = """
const { logView } = await import("./log.js");
const pause = () => new Promise((resolve) => setTimeout(resolve, 20));
let [end, calls] = [120, 0]; // indexes 20 to 119
const answer = (document) => new Response(JSON.stringify(document));
window.fetch = async (address) => {
  calls += 1;
  const query = new URL(address, location).searchParams;
  const from = query.has("last") ? end - 1 : Number(query.get("from_index") ?? 20);
  const until = Math.min(query.get("until_index") ?? end, end, from + Number(query.get("limit") ?? 1));
  const indexes = Array.from({ length: Math.max(0, until - from) }, (_, place) => from + place);
  const records = indexes.map((index) => ({ index, value: "v" }));
  return answer({ records, next_index: until, begin_index: 20, has_more: until < end });
};
const view = logView("orders", "records");
holder.append(view.element);
const buttons = [...holder.querySelectorAll("button")].slice(-2);
const [earlier, later] = buttons;
const status = holder.querySelector("[role=status]");
const noted = () => [...buttons.map((each) => each.ariaDisabled), status.textContent];
result.ends = [noted().slice(0, 2)];
async function press(button) {
  button.focus();
  button.click();
  for (let turn = 0; turn < 5; turn += 1) await pause();
  result.ends.push(noted());
}
await pause();
for (const button of [later, earlier]) await press(button);
const before = calls;
await press(earlier);
result.ignored = calls === before && document.activeElement === earlier;
for (const button of [later, later]) await press(button);
for (end of [120, 121]) {
  await view.refresh({ logs: [{ name: "orders", committed_index: end - 1 }] });
  result.ends.push(noted());
}
await press(later);
const start = holder.querySelector("select");
start.value = "time";
start.dispatchEvent(new Event("change"));
calls = 0;
holder.querySelector("form").requestSubmit(); // without a time
await pause();
result.without = calls;
const job = { state: "failed", updated_ms: 1, error: "<b>no</b> space", failed_ms: 1 };
result.jobs = [];
const runs = { state: "running" };
for (const other of [{}, { failed_ms: null, error: null }, runs, { ...runs, updated_ms: -90_000 }]) {
  window.fetch = async () => answer({ tables: [{ name: "entries" }], job: { ...job, ...other } });
  const tables = logView("orders", "tables");
  holder.replaceChildren(tables.element);
  for (let turn = 0; turn < 2; turn += 1) await tables.refresh({ now_ms: 1 });
  result.jobs.push(...[...holder.querySelectorAll("[role=alert], caption")].map((each) => each.textContent));
}"""
    shown = result_of(site, script)
    begin, end = "records 20 to 69, beginning of the log", "records 70 to 119, end of the log"
    assert shown["ends"] == [
        ["true", "true"],  # nothing is known yet
        ["false", "true", end],  # the button is ignored
        ["true", "false", begin],
        ["true", "false", begin],
        ["false", "true", end],
        ["false", "true", end],
        ["false", "true", end],
        ["false", "false", end],  # the log has grown
        ["false", "true", "records 120 to 120, end of the log"],
    ]
    assert (shown["ignored"], shown["without"]) == (True, 0)
    jobs = shown["jobs"]
    assert isinstance(jobs, list)
    failed, unknown, running, silent = jobs
    words = "The Spark job of this log has failed"
    assert re.fullmatch(rf"{words} since 1970-01-01 [\d:]*.001: <b>no</b> space", failed)
    assert re.fullmatch(rf"{words} \(reported .*\): the lines that it printed have the reason", unknown)
    assert running.startswith("Spark job: running, reported 1970-01-01 ")
    assert silent.startswith("The Spark job of this log has not reported for 90.0 s, since 1969-12-31 ")
