"""The scripts of the live page in a browser, without a node: a refresh keeps what a person has begun."""

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
from app.names import LOG_NAME

SCRIPTS = Path(live_page.__file__).with_name("live")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
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


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the scripts of the live page."""
    shutil.copytree(SCRIPTS, tmp_path / "site")
    return tmp_path / "site"


def result_of(site: Path, script: str, *, width: int = 1280) -> dict[str, object]:
    """Return what the script has put into `result`. width: of the window, pixels."""
    if BROWSER is None:
        pytest.skip("needs Chromium")
    (site / "test.html").write_text(PAGE % script, encoding="utf-8")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
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


def test_a_refresh_keeps_the_focus_and_the_scroll_position(site: Path) -> None:
    script = """
      const columns = [["Log", (log) => h("a", { href: `#/${log}` }, log)]];
      const show = (logs) => update(holder, table(columns, logs, { key: (log) => log }));
      show(["b", "c"]);
      holder.querySelector('a[href="#/c"]').focus();
      const scroll = holder.querySelector(".scroll");
      show(["a", "b", "c", "d"]);
      result.focus = document.activeElement.textContent;
      result.same = scroll === holder.querySelector(".scroll");
      result.rows = [...holder.querySelectorAll("a")].map((each) => each.textContent);
      show(["c"]);
      result.left = [...holder.querySelectorAll("a")].map((each) => each.textContent);
      result.focus_after = document.activeElement.textContent;
    """
    shown = result_of(site, script)
    assert (shown["focus"], shown["same"]) == ("c", True)
    assert shown["rows"] == ["a", "b", "c", "d"]
    assert (shown["left"], shown["focus_after"]) == (["c"], "c")


def test_a_button_acts_on_its_own_row(site: Path) -> None:
    script = """
      const pressed = [];
      const button = (name, node) => h(
        "button", { "data-key": name, onclick: () => pressed.push(`${name} ${node.id}`) }, name);
      const buttons = (node) => h(
        "div", {}, node.voter ? null : button("promote", node), button("remove", node));
      const columns = [["Node", (node) => node.id], ["Actions", buttons]];
      const show = (nodes) => update(holder, table(columns, nodes, { key: (node) => node.id }));
      show([{ id: "n1", voter: true }, { id: "n2", voter: true }]);
      show([{ id: "n2", voter: false }]);
      for (const each of holder.querySelectorAll("button")) each.click();
      show([{ id: "n0", voter: true }, { id: "n2", voter: true }]);
      for (const each of holder.querySelectorAll("button")) each.click();
      result.pressed = pressed;
    """
    assert result_of(site, script)["pressed"] == ["promote n2", "remove n2", "remove n0", "remove n2"]


def test_an_opened_record_stays_open_while_others_arrive(site: Path) -> None:
    script = """
      const columns = [["Value", (index) => h("details", {}, h("summary", {}, index))]];
      const options = { key: (index) => index, fixed: true };
      const show = (records) => update(holder, table(columns, records, options));
      show([2, 1]);
      holder.querySelectorAll("details")[1].open = true;
      show([4, 3, 2, 1]);
      result.open = [...holder.querySelectorAll("details[open]")].map((each) => each.textContent);
    """
    assert result_of(site, script)["open"] == ["1"]


def test_a_chart_names_the_busiest_and_shows_a_gap(site: Path) -> None:
    script = """
      const series = new Series();
      series.add(1_000, { a: 1, b: 5, gone: null });
      series.add(2_000, { a: 1, b: 5, c: 3 });
      series.add(60_000, { a: 1, b: 5, c: 3 });
      result.busiest = series.largest(2);
      result.times = series.times;
      result.names = [...series.values.keys()];
      result.c = series.values.get("c");
    """
    shown = result_of(site, script)
    assert shown["busiest"] == ["b", "c"]
    assert shown["times"] == [1, 2, 3, 60]  # no line over the time in which the page was hidden
    assert shown["names"] == ["a", "b", "c"]
    assert shown["c"] == [None, 3, None, 3]


def test_a_chart_begins_with_a_minute(site: Path) -> None:
    """uPlot draws a thousand days for one point alone."""
    script = """
      const chart = new LineChart({ label: "rate", format: (value) => `${value}` });
      holder.append(chart.element);
      const series = new Series();
      result.before = chart.element.textContent;
      for (const second of [0, 1, 2]) {
        series.add(1_700_000_000_000 + 1_000 * second, { a: second });
        chart.show(series, series.largest(8));
        await Promise.resolve();
      }
      result.range = [chart.plot.scales.x.min, chart.plot.scales.x.max].map((at) => at - 1_700_000_000);
      result.legend = chart.element.querySelector(".u-legend").textContent;
      result.text = chart.element.firstChild.nodeName;
    """
    shown = result_of(site, script)
    assert (shown["before"], shown["text"]) == ("Waiting for a second sample…", "DIV")
    assert shown["range"] == [-58, 2]
    assert str(shown["legend"]).endswith("a2")  # the newest value, while no pointer chooses another


def test_the_axes_of_a_chart_follow_the_scheme_of_the_system(site: Path) -> None:
    """Labels in the ink of the light scheme cannot be read on the dark card."""
    script = """
      const inks = [];
      const fill = CanvasRenderingContext2D.prototype.fillText;
      CanvasRenderingContext2D.prototype.fillText = function (...given) {
        inks.push(this.fillStyle);
        return fill.apply(this, given);
      };
      const chart = new LineChart({ label: "rate", format: (value) => `${value}` });
      holder.append(chart.element);
      const series = new Series();
      let second = 0;
      const draw = async (color) => {
        document.body.style.color = color;
        inks.length = 0;
        for (const each of [second, second + 1]) series.add(1_700_000_000_000 + 1_000 * each, { a: each });
        second += 2;
        chart.show(series, ["a"]);
        await new Promise((resolve) => setTimeout(resolve, 50));
        return [...new Set(inks)];
      };
      result.light = await draw("#1b2430");
      result.dark = await draw("#e6ebf2");
    """
    shown = result_of(site, script)
    assert (shown["light"], shown["dark"]) == (["#1b2430"], ["#e6ebf2"])


def test_a_name_that_no_log_can_have_is_explained(site: Path) -> None:
    script = """
      const page = new DOMParser().parseFromString(await (await fetch("index.html")).text(), "text/html");
      for (const script of page.querySelectorAll("script")) script.remove();
      document.body.append(...page.body.children);
      const { logsView } = await import("./logs.js");
      const view = logsView();
      holder.append(view.element);
      [...holder.querySelectorAll("button")].find((each) => each.textContent === "Create log").click();
      const name = byId("dialog").querySelector("input");
      name.value = "a/b";
      result.valid = name.checkValidity();
      result.title = name.title;
    """
    shown = result_of(site, script)
    assert shown["valid"] is False  # the browser shows the title with its own sentence
    assert shown["title"] == LOG_NAME.words.removeprefix("must have ").replace("`", "")


@pytest.mark.parametrize("how", ["click", "enter"])
def test_a_refused_trim_keeps_the_dialog_with_what_was_typed(site: Path, how: str) -> None:
    script = """
      document.body.append(h("dialog", { id: "dialog" }), h("div", { id: "toasts" }));
      const { settingsTab } = await import("./settings.js");
      const answers = [
        [409, { code: "not-materialized", detail: "the cursor __entries is at 7" }],
        [200, { log: "orders", begin_index: 7 }],
      ];
      const asked = [];
      window.fetch = async (path, { method = "GET", body } = {}) => {
        if (method === "GET") return new Response('{"replication": "raft", "replicas": ["n1"]}');
        asked.push([path, body]);
        const [status, document] = answers.shift();
        return new Response(JSON.stringify(document), { status });
      };
      const pause = () => new Promise((resolve) => setTimeout(resolve, 20));
      const tab = settingsTab("orders");
      holder.append(tab.element);
      await pause();
      [...holder.querySelectorAll("button")].find((each) => each.textContent === "Trim").click();
      await pause();
      const dialog = byId("dialog");
      const input = dialog.querySelector("input");
      input.value = "9";
      const from = HOW === "enter" ? input : dialog.querySelector("[type=submit]");
      from.focus();
      dialog.querySelector("form").requestSubmit();
      while (!dialog.querySelector("[role=alert]").textContent) await pause();
      result.refused = {
        open: dialog.open,
        text: dialog.querySelector("[role=alert]").textContent,
        typed: input.value,
        can_repeat: !dialog.querySelector("[type=submit]").disabled,
        focus: document.activeElement === from,
        toasts: byId("toasts").textContent,
      };
      input.value = "7";
      dialog.querySelector("form").requestSubmit();
      while (dialog.open) await pause();
      result.toasts = byId("toasts").textContent;
      result.asked = asked;
    """
    shown = result_of(site, script.replace("HOW", json.dumps(how)))
    assert shown["refused"] == {
        "open": True,
        "text": "the cursor __entries is at 7",
        "typed": "9",
        "can_repeat": True,
        "focus": True,
        "toasts": "",
    }
    assert shown["toasts"] == "orders begins at index 7"
    path = "/v1/logs/orders:trim"
    assert shown["asked"] == [[path, '{"until_index":9}'], [path, '{"until_index":7}']]


def test_a_refused_append_keeps_the_record_and_a_repeat_stores_it_once(site: Path) -> None:
    script = """
      document.body.append(h("dialog", { id: "dialog" }), h("div", { id: "toasts" }));
      const { recordsTab } = await import("./records.js");
      const keys = [];
      window.fetch = async (path, { method = "GET", headers } = {}) => {
        const empty = { records: [], next_index: 0, begin_index: 0, has_more: false };
        if (method === "GET") return new Response(JSON.stringify(empty));
        keys.push(headers["idempotency-key"]);
        const document = { code: "quorum-timeout", detail: "no majority", outcome: "unknown" };
        return new Response(JSON.stringify(document), { status: 504 });
      };
      const pause = () => new Promise((resolve) => setTimeout(resolve, 20));
      const tab = recordsTab("orders");
      holder.append(tab.element);
      [...holder.querySelectorAll("button")].find((each) => each.textContent === "Append").click();
      await pause();
      const form = byId("dialog").querySelector("form");
      const refusal = form.querySelector("[role=alert]");
      const [key, value, headers] = form.querySelectorAll("input, textarea");
      const send = async () => {
        form.requestSubmit();
        while (!refusal.textContent || form.querySelector("[type=submit]").disabled) await pause();
        return refusal.textContent;
      };
      value.value = "v";
      headers.value = "no colon";
      result.texts = [await send()];
      headers.value = "a: b";
      result.texts.push(await send(), await send());
      value.value = "w";
      await send();
      result.kept = [key.value, value.value, headers.value];
      result.keys = keys.map((each) => keys.indexOf(each));
      tab.close?.();
    """
    shown = result_of(site, script)
    assert shown["texts"] == [
        'A header is a line "name: value", got "no colon"',
        "no majority (unknown)",
        "no majority (unknown)",
    ]
    assert shown["kept"] == ["", "w", "a: b"]
    assert shown["keys"] == [0, 0, 2]  # another record has another key


def test_a_log_that_existed_is_not_reported_as_created(site: Path) -> None:
    script = """
      document.body.append(h("dialog", { id: "dialog" }), h("div", { id: "toasts" }));
      document.body.append(h("main", { id: "view" }));
      const { logsView } = await import("./logs.js");
      holder.append(logsView().element);
      const pause = () => new Promise((resolve) => setTimeout(resolve, 20));
      for (const status of [201, 200]) {
        window.fetch = async () => new Response("{}", { status });
        [...holder.querySelectorAll("button")].find((each) => each.textContent === "Create log").click();
        byId("dialog").querySelector("input").value = "orders";
        byId("dialog").querySelector("form").requestSubmit();
        while (byId("dialog").open) await pause();
      }
      result.toasts = [...byId("toasts").children].map((each) => each.textContent);
    """
    assert result_of(site, script)["toasts"] == [
        "Log orders was created",
        "Log orders existed with these settings",
    ]


def test_the_title_names_the_view(site: Path) -> None:
    script = """
      const page = new DOMParser().parseFromString(await (await fetch("index.html")).text(), "text/html");
      for (const script of page.querySelectorAll("script")) script.remove();
      document.body.append(...page.body.children);
      window.fetch = async () => new Response("{}", { status: 503 });
      await import("./main.js");
      result.titles = [document.title];
      for (const view of ["#/nodes", "#/logs/orders/records"]) {
        location.hash = view;
        await new Promise((resolve) => window.addEventListener("hashchange", resolve, { once: true }));
        result.titles.push(document.title);
      }
    """
    assert result_of(site, script)["titles"] == [
        "Logs - commitlog",
        "Nodes - commitlog",
        "orders - commitlog",
    ]


def test_a_log_that_does_not_exist_is_reported_in_its_place(site: Path) -> None:
    script = """
      const { logView } = await import("./log.js");
      let answer = new Response('{"code": "log-not-found", "detail": "no such log"}', { status: 404 });
      window.fetch = async () => answer;
      const view = logView("nope", "overview");
      holder.append(view.element);
      await view.refresh({});
      result.text = holder.querySelector("[role=alert]").textContent;
      result.waits = holder.textContent.includes("Waiting");
      answer = new Response('{"code": "internal", "detail": "failed"}', { status: 500 });
      result.failed = await view.refresh({}).catch((error) => error.message);
      answer = new Response('{"nodes": [], "now_ms": 1, "size_bytes": 0, "replication": "raft"}');
      await view.refresh({});
      result.left = holder.querySelector("[role=alert]") === null;
      result.nodes = holder.textContent.includes("Nodes");
    """
    shown = result_of(site, script)
    assert (shown["text"], shown["waits"]) == ("The log nope does not exist. All logs", False)
    assert (shown["failed"], shown["left"], shown["nodes"]) == ("failed", True, True)


def test_a_leader_without_a_connection_is_not_shown_as_leader(site: Path) -> None:
    script = """
      const { logsView } = await import("./logs.js");
      const view = logsView();
      holder.append(view.element);
      const alive = { n1: false, n2: true, n3: true };
      const log = { replication: "controller", begin_index: 0, committed_index: 9, size_bytes: 1 };
      view.refresh({
        node: "n2",
        nodes: Object.entries(alive).map(([id, each]) => ({ id, alive: each })),
        logs: [
          { ...log, name: "lost", leader: "n1", replicas: ["n1", "n2"], lag_records: null },
          { ...log, name: "less", leader: "n2", replicas: ["n1", "n2"], lag_records: null },
          { ...log, name: "full", leader: "n3", replicas: ["n2", "n3"], lag_records: 0 },
        ],
        append_bounds_s: [1], append_counts: [0, 0], now_ms: 1,
      });
      result.rows = [...holder.querySelectorAll("tbody tr[data-key]")]
        .map((row) => [0, 2, 4, 7, 8].map((place) => row.cells[place].textContent));
    """
    assert result_of(site, script)["rows"] == [
        ["full", "n3", "0 to 9", "0", "serving"],
        ["less", "n2", "0 to 9", "\u2013", "without n1"],
        ["lost", "none", "0 to 9", "\u2013", "no leader"],
    ]


def test_a_refused_token_is_forgotten_and_a_cancel_is_respected(site: Path) -> None:
    script = """
      const page = new DOMParser().parseFromString(await (await fetch("index.html")).text(), "text/html");
      for (const script of page.querySelectorAll("script")) script.remove();
      document.body.append(...page.body.children);
      sessionStorage.setItem("commitlog-token", "wrong");
      const served = window.fetch; // takes real time: a closed dialog tells so with the next frame
      window.fetch = async () => new Response("{}", { status: 401 });
      const dialog = byId("dialog");
      const pause = () => new Promise((resolve) => setTimeout(resolve, 20));
      await import("./main.js");
      while (!dialog.open) await pause();
      result.text = dialog.textContent;
      result.token = sessionStorage.getItem("commitlog-token");
      dialog.querySelector("button[type=button]").click();
      while (byId("token").textContent !== "Log in") await served("index.html", { cache: "no-store" });
      for (let turn = 0; turn < 150; turn += 1) await pause(); // 3 s: some polls
      result.again = dialog.open;
      result.button = byId("token").textContent;
      byId("token").click();
      result.asked = dialog.open;
    """
    shown = result_of(site, script)
    assert "does not accept this token" in str(shown["text"])
    assert shown["token"] is None
    assert (shown["again"], shown["button"], shown["asked"]) == (False, "Log in", True)


def test_a_login_comes_above_an_open_dialog_which_stays_as_it_was_filled_in(site: Path) -> None:
    script = """
      const { ask } = await import("./dom.js");
      document.body.append(h("dialog", { id: "dialog" }), h("div", { id: "toasts" }));
      const input = h("input");
      const asked = ask({ title: "Append", fields: [["value", "Value", input]] });
      input.value = "typed";
      const login = ask({ title: "Log in", fields: [["token", "Token", h("input")]], confirm: "Log in" });
      const above = document.querySelector("dialog:modal:not(#dialog)");
      above.querySelector("input").value = "secret";
      result.titles = [...document.querySelectorAll("dialog[open] h2")].map((title) => title.textContent);
      result.label = document.getElementById(above.getAttribute("aria-labelledby")).textContent;
      above.querySelector("form").requestSubmit();
      result.token = (await login).token;
      result.left = document.querySelectorAll("dialog").length;
      result.open = byId("dialog").open;
      byId("dialog").querySelector("form").requestSubmit();
      result.value = (await asked).value;
    """
    assert result_of(site, script) == {
        "titles": ["Append", "Log in"],
        "label": "Log in",
        "token": "secret",
        "left": 1,
        "open": True,
        "value": "typed",
    }


def test_the_caption_of_a_wide_table_stays_in_sight(site: Path) -> None:
    script = """
      const sheet = document.head.appendChild(document.createElement("link"));
      await new Promise((onload) => Object.assign(sheet, { rel: "stylesheet", href: "page.css", onload }));
      const columns = Array.from({ length: 60 }, (_, number) => [`Column ${number}`, () => "value"]);
      const caption = "words that need more room than the window has ".repeat(5);
      update(holder, table(columns, [{}], { caption, key: () => "row" }));
      result.table = holder.querySelector("table").offsetWidth > innerWidth;
      result.caption = holder.querySelector("caption").offsetWidth < innerWidth;
    """
    assert result_of(site, script) == {"table": True, "caption": True}


def test_a_page_that_a_person_chooses_ends_the_live_tail(site: Path) -> None:
    script = """
      const row = (index) => ({ index, timestamp: 1, key: null, value: `v${index}`, term: 1, offset: 1 });
      window.fetch = async (address) => {
        const query = new URL(address, location).searchParams;
        if (query.has("wait_ms")) await new Promise(() => {}); // the tail never ends
        const page = { records: [row(7)], next_index: 8, begin_index: 0, has_more: false };
        const headers = { "content-type": "application/json" };
        return new Response(JSON.stringify(page), { status: 200, headers });
      };
      const { recordsTab } = await import("./records.js");
      const tab = recordsTab("orders");
      holder.append(tab.element);
      const pause = () => new Promise((resolve) => setTimeout(resolve, 20));
      const tail = holder.querySelector("input[type=checkbox]");
      result.checked = [];
      for (const name of ["Earlier", "Later"]) {
        tail.click();
        while (!holder.textContent.includes("Live, ")) await pause();
        [...holder.querySelectorAll("button")].find((each) => each.textContent === name).click();
        result.checked.push(tail.checked);
        while (holder.textContent.includes("Live, ")) await pause();
      }
      tab.close();
    """
    assert result_of(site, script)["checked"] == [False, False]


def test_a_node_that_was_removed_is_not_missing(site: Path) -> None:
    script = """
      const { logsView } = await import("./logs.js");
      const { nodesView } = await import("./nodes.js");
      const overview = {
        node: "n1", logs: [], append_bounds_s: [1], append_counts: [0, 0], now_ms: 1,
        nodes: [
          { id: "n1", alive: true, voter: true, outside: false },
          { id: "n2", alive: false, voter: true, outside: false },
          { id: "n3", alive: false, voter: false, outside: true },
        ],
      };
      const [logs, nodes] = [logsView(), nodesView()];
      holder.append(logs.element, nodes.element);
      for (const view of [logs, nodes]) view.refresh(overview);
      result.connected = [...logs.element.querySelectorAll("*")]
        .map((each) => each.textContent).find((text) => /^\\d+ of \\d+$/.test(text));
      result.states = [...nodes.element.querySelectorAll("tbody tr[data-key]")]
        .map((row) => [1, 2].map((place) => row.cells[place].textContent));
    """
    shown = result_of(site, script)
    assert shown["connected"] == "1 of 2"
    assert shown["states"] == [["connected", "voter"], ["no connection", "voter"], ["removed", "in no log"]]


def test_a_long_key_is_shortened_until_its_record_is_opened(site: Path) -> None:
    script = """
      const { keyCell, valueCell } = await import("./records.js");
      const record = { index: 1, key: "k".repeat(10_000), value: "v", term: 1, offset: 0, type: "data" };
      result.shown = keyCell(record).length;
      result.others = [keyCell({ key: null }), keyCell({ key: "" }), keyCell({ key: "a" })];
      const cell = holder.appendChild(valueCell(record));
      cell.open = true;
      await new Promise((resolve) => setTimeout(resolve, 50));
      result.whole = [...cell.querySelectorAll("pre")].map((each) => each.textContent.length);
    """
    assert result_of(site, script) == {"shown": 141, "others": ["\u2013", "", "a"], "whole": [10_000, 1]}


def test_a_token_that_no_header_can_carry_is_refused(site: Path) -> None:
    """It would make every later call fail, as if the node did not respond."""
    script = """
      const { setToken, token } = await import("./service.js");
      setToken("cl_good");
      for (const bad of ["a b", "a\\nb", "\u2014x"]) {
        try { setToken(bad); } catch (error) { result[bad] = error.message; }
      }
      result.kept = token();
    """
    shown = result_of(site, script)
    assert shown.pop("kept") == "cl_good"
    assert set(shown.values()) == {"A token has visible ASCII characters alone, and no blanks"}
    assert len(shown) == 3


def test_a_long_name_in_a_legend_is_no_wider_than_the_screen(site: Path) -> None:
    script = """
      const style = (name) => new Promise((resolve) => document.head.append(
        h("link", { rel: "stylesheet", href: name, onload: resolve })));
      await style("uplot.css");
      await style("page.css");
      holder.style.width = "300px";
      const chart = new LineChart({ label: "rate", format: (value) => `${value}` });
      holder.append(chart.element);
      const series = new Series();
      for (const second of [0, 1]) series.add(1_700_000_000_000 + 1_000 * second, { ["name".repeat(32)]: 1 });
      chart.show(series, series.largest(8));
      await new Promise((resolve) => setTimeout(resolve, 50));
      result.width = holder.scrollWidth;
    """
    assert result_of(site, script)["width"] == 300


def test_the_lag_of_each_node_is_what_the_leader_knows(site: Path) -> None:
    script = """
const { lags } = await import("./log.js");
const nodes = ["n1", "n2", "n3", "n4"].map((id) => ({ id, status: { next_index: 99 } }));
const peers = [{ id: "n1", watermark: 70 }, { id: "n3", watermark: -1 }];
result.known = lags(nodes, { node: "n2", end_index: 72, peers });
result.unknown = lags(nodes, undefined);"""
    assert result_of(site, script) == {
        "known": {"n1": 2, "n2": 0, "n3": None, "n4": None},
        "unknown": {"n1": None, "n2": None, "n3": None, "n4": None},
    }


@pytest.mark.parametrize(("width", "share"), [(1280, 0.6), (500, 0.95)])
def test_a_long_value_has_room_on_every_screen(site: Path, width: int, share: float) -> None:
    """On a narrow screen it is below the other cells, which show their titles; its marker has no line of its
    own."""
    script = """
const style = h("link", { rel: "stylesheet", href: "page.css" });
const loaded = new Promise((done) => style.addEventListener("load", done));
document.head.append(style);
await loaded;
const value = h("details", {}, h("summary", {}, "x".repeat(140)));
const columns = [["Index", () => "1", "number"], ["Time", () => "12:00"], ["Value", () => value, "value"]];
holder.append(h("div", { style: "width: 100vw" }, table(columns, [1], { stacks: true })));
const cell = holder.querySelector("td.value").getBoundingClientRect();
result.share = cell.width / holder.querySelector("table").getBoundingClientRect().width;
const range = document.createRange();
range.selectNodeContents(value.firstChild);
const marker = value.getBoundingClientRect().top;
result.same_line = Math.abs(range.getClientRects()[0].top - marker) < 8;
result.title = getComputedStyle(holder.querySelector("td"), "::before").content;"""
    found = result_of(site, script, width=width)
    assert found["share"] > share  # type: ignore[operator]
    assert found["same_line"]
    assert ("Index" in str(found["title"])) == (width == 500)
