"""Views of the live page in a browser: a refresh keeps what a person has begun."""

import json
from pathlib import Path

import pytest

from tests.support.browser import result_of


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


def test_the_labels_of_an_axis_are_the_values_of_its_lines(site: Path) -> None:
    """With whole numbers as labels, lines at 2.5 and 7.5 would be labelled 3 and 8."""
    script = """
      const chart = new LineChart({ label: "rate", format: (value) => `${Math.round(value)}` });
      holder.append(chart.element);
      const labels = {};
      let second = 0;
      for (const most of [0, 1, 4, 9.6, 12, 26, 70, 12_345]) {
        const series = new Series();
        for (const last = second + 3; second < last; second += 1)
          series.add(1_700_000_000_000 + 1_000 * second, { a: most });
        chart.show(series, ["a"]);
        await new Promise((resolve) => setTimeout(resolve, 50));
        const { _splits: lines, _values: texts } = chart.plot.axes[1];
        labels[most] = lines.map((line, place) => [line, Number(texts[place])]);
      }
      result.labels = labels;
    """
    labels = result_of(site, script)["labels"]
    assert isinstance(labels, dict)
    assert len(labels) == 8
    for most, found in labels.items():
        assert len(found) >= 2, most
        assert all(line == text for line, text in found), (most, found)


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


def test_the_title_names_the_view(site: Path) -> None:
    script = """
      const page = new DOMParser().parseFromString(await (await fetch("index.html")).text(), "text/html");
      for (const script of page.querySelectorAll("script")) script.remove();
      document.body.append(...page.body.children);
      const cut = new TypeError("cut");
      window.fetch = () => new Promise((_, fail) => setTimeout(() => fail(cut), 2_000));
      await import("./main.js");
      result.titles = [document.title];
      for (const view of ["#/nodes", "#/logs/orders/records"]) {
        location.hash = view;
        await new Promise((resolve) => window.addEventListener("hashchange", resolve, { once: true }));
        result.titles.push(document.title);
      }
      document.activeElement.blur();
      document.querySelector(".skip").click();
      await new Promise((resolve) => setTimeout(resolve, 20));
      result.skipped = [location.hash, document.activeElement.id];
      while (byId("stale").hidden) await new Promise((resolve) => setTimeout(resolve, 100));
      result.stale = byId("stale").textContent;
    """
    shown = result_of(site, script)
    assert shown["titles"] == ["Logs - commitlog", "Nodes - commitlog", "orders - commitlog"]
    assert str(shown["stale"]).startswith("This node has not responded for 2 s (cut).")  # since the call
    assert shown["skipped"] == ["#/logs/orders/records", "view"]  # the link skips to the content of the view


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


def test_commands_in_empty_tabs_are_code(site: Path) -> None:
    script = """
      const { logView } = await import("./log.js");
      const answers = { schema: '{"schemas": []}', tables: '{"tables": []}' };
      for (const [tab, answer] of Object.entries(answers)) {
        window.fetch = async () => new Response(answer);
        const view = logView("orders", tab);
        holder.append(view.element);
        await view.refresh({});
        result[tab] = [...holder.querySelectorAll("code")].map((each) => each.textContent);
        result[`${tab} text`] = holder.querySelector(".empty").textContent.includes("`");
        holder.replaceChildren();
      }
    """
    assert result_of(site, script) == {
        "schema": ["commitlog schema set FILE --log orders"],
        "schema text": False,
        "tables": ["[tables] path", "commitlog materialize"],
        "tables text": False,
    }


def test_the_settings_of_a_log_that_does_not_exist_are_replaced_by_a_report(site: Path) -> None:
    script = """
      document.body.append(h("div", { id: "toasts" }));
      const { logView } = await import("./log.js");
      let answer = () => new Response('{"code": "log-not-found", "detail": "no such log"}', { status: 404 });
      window.fetch = async () => answer();
      const view = logView("nope", "settings");
      holder.append(view.element);
      await view.refresh({});
      result.text = holder.querySelector("[role=alert]").textContent;
      result.buttons = holder.querySelectorAll("button").length;
      answer = () => new Response('{"replication": "raft", "replicas": ["n1"]}');
      await view.refresh({});
      result.created = holder.querySelector("[role=alert]") === null;
      result.settings = holder.textContent.includes("n1");
      result.toasts = byId("toasts").textContent;
    """
    assert result_of(site, script) == {
        "text": "The log nope does not exist. All logs",
        "buttons": 0,
        "created": True,
        "settings": True,
        "toasts": "",
    }


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
      result.figures = [...holder.querySelector(".figures").children].map((each) => each.textContent);
      result.narrow = holder.querySelector("td:last-child").dataset.title;
    """
    shown = result_of(site, script)
    assert shown["narrow"] == "State"  # below the name on a telephone, not beyond the edge of the screen
    assert shown["figures"][1:3] == ["3logs", "1log without a leader"]  # type: ignore[index]
    assert shown["rows"] == [
        ["full", "n3", "0 to 9", "0", "serving"],
        ["less", "n2", "0 to 9", "\u2013", "without n1"],
        ["lost", "none", "0 to 9", "\u2013", "no leader"],
    ]


def test_the_caption_of_a_wide_table_stays_in_sight(site: Path) -> None:
    script = """
      const sheet = document.head.appendChild(document.createElement("link"));
      await new Promise((onload) => Object.assign(sheet, { rel: "stylesheet", href: "page.css", onload }));
      const columns = Array.from({ length: 60 }, (_, number) => [`Column ${number}`, () => "value"]);
      const caption = "words that need more room than the window has ".repeat(5);
      update(holder, table(columns, [{}], { caption, key: () => "row" }));
      document.body.append(h("main", {}, h("section", {}, holder)));
      result.table = holder.querySelector("table").offsetWidth > innerWidth;
      const right = (name) => holder.querySelector(name).getBoundingClientRect().right;
      result.captions = [];
      for (const size of [16, 32]) {
        document.documentElement.style.fontSize = `${size}px`;
        result.captions.push(right("caption") <= right(".scroll"));
      }
    """
    assert result_of(site, script) == {"table": True, "captions": [True, True]}


def test_a_page_that_a_person_chooses_ends_the_live_tail(site: Path) -> None:
    script = """
      const row = (index) => ({ index, timestamp: 1, key: null, value: `v${index}`, term: 1, offset: 1 });
      window.fetch = async (address) => {
        const query = new URL(address, location).searchParams;
        if (query.has("wait_ms")) await new Promise(() => {}); // the tail never ends
        const records = Array.from({ length: 60 }, (_, index) => row(index));
        const page = { records, next_index: 60, begin_index: 0, has_more: false };
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
        while (!/Live, .*end of/s.test(holder.textContent)) await pause();
        await tab.refresh({ logs: [{ name: "orders", committed_index: 60 }] }); // Later has an effect
        [...holder.querySelectorAll("button")].find((each) => each.textContent === name).click();
        result.checked.push(tail.checked);
        while (holder.textContent.includes("Live, ")) await pause();
      }
      tab.close();
    """
    assert result_of(site, script)["checked"] == [False, False]


def test_a_removed_node_is_not_missing_and_a_log_whose_spark_job_failed_shows_it(site: Path) -> None:
    script = """
      const { logsView } = await import("./logs.js");
      const { nodesView } = await import("./nodes.js");
      const log = { replication: "raft", leader: "n1", replicas: ["n1"], begin_index: 0, committed_index: 1 };
      const jobs = { a: undefined, b: "running", c: "failed" };
      const overview = {
        node: "n1", append_bounds_s: [1], append_counts: [0, 0], now_ms: 1,
        nodes: [
          { id: "n1", alive: true, voter: true, outside: false },
          { id: "n2", alive: false, voter: true, outside: false },
          { id: "n3", alive: false, voter: false, outside: true },
        ],
        logs: Object.entries(jobs).map(([name, job]) => ({ ...log, name, tables_job: job })),
      };
      const [logs, nodes] = [logsView(), nodesView()];
      holder.append(logs.element, nodes.element);
      for (const view of [logs, nodes]) view.refresh(overview);
      result.connected = [...logs.element.querySelectorAll("*")]
        .map((each) => each.textContent).find((text) => /^\\d+ of \\d+$/.test(text));
      result.states = [...nodes.element.querySelectorAll("tbody tr[data-key]")]
        .map((row) => [1, 2].map((place) => row.cells[place].textContent));
      result.logs = [...logs.element.querySelectorAll("tbody tr[data-key]")]
        .map((row) => [...row.cells].at(-1).textContent);
    """
    shown = result_of(site, script)
    assert shown["connected"] == "1 of 2"
    assert shown["logs"] == ["serving", "serving", "serving Spark job failed"]
    assert shown["states"] == [["connected", "voter"], ["no connection", "voter"], ["removed", "in no log"]]


def test_a_long_key_is_shortened_until_its_record_is_opened(site: Path) -> None:
    script = """
      const { keyCell, valueCell } = await import("./records.js");
      const record = { index: 1, key: "k".repeat(10_000), value: "v", term: 1, offset: 0, type: "data" };
      result.shown = keyCell(record).length;
      result.others = [null, "", "a", "\\u202egnp.exe"].map((key) => keyCell({ key }));
      const cell = holder.appendChild(valueCell(record));
      cell.open = true;
      await new Promise((resolve) => setTimeout(resolve, 50));
      result.whole = [...cell.querySelectorAll("pre")].map((each) => each.textContent.length);
    """
    assert result_of(site, script) == {
        "shown": 141,
        "others": ["\u2013", "", "a", "\\u202egnp.exe"],
        "whole": [10_000, 1],
    }


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


def test_a_long_name_of_a_log_leaves_room_for_the_other_columns(site: Path) -> None:
    script = """
      const { logsView } = await import("./logs.js");
      const style = h("link", { rel: "stylesheet", href: "page.css" });
      const loaded = new Promise((done) => style.addEventListener("load", done));
      document.head.append(style);
      await loaded;
      const log = { name: "name".repeat(32), replication: "raft", leader: "n1", replicas: ["n1", "n2"] };
      const view = logsView();
      holder.append(view.element);
      const logs = [{ ...log, begin_index: 0, committed_index: 1_000_000 }];
      view.refresh({ now_ms: 1, nodes: [], append_counts: [], append_bounds_s: [], logs });
      const scroll = holder.querySelector(".scroll");
      result.hidden = scroll.scrollWidth - scroll.clientWidth;
    """
    assert result_of(site, script)["hidden"] == 0


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
result.title = getComputedStyle(holder.querySelector("td"), "::before").content;
const many = ["Table", "Version", "Materialized index", "Records behind", "Oldest waits", "Last commit"];
holder.replaceChildren(table(many.map((title) => [title, () => "1"]), [1], { stacks: true }));
result.overflow = document.documentElement.scrollWidth - innerWidth;"""
    found = result_of(site, script, width=width)
    assert found["overflow"] == 0  # also by titles that are not shown
    assert found["share"] > share  # type: ignore[operator]
    assert found["same_line"]
    assert ("Index" in str(found["title"])) == (width == 500)


def test_a_removed_node_has_no_actions(site: Path) -> None:
    script = """
      const { nodesView } = await import("./nodes.js");
      const view = nodesView();
      holder.append(view.element);
      const node = (id, voter, outside) => ({ id, voter, outside, alive: true, url: `http://${id}` });
      const nodes = [node("n1", true, false), node("n2", false, false), node("n3", false, true)];
      view.refresh({ node: "n1", logs: ["b", "a"].map((name) => ({ name, leader: "n1" })), nodes });
      result.labels = [...holder.querySelectorAll("button[aria-label]")].map((each) => each.ariaLabel);
      result.leads = [...holder.querySelectorAll("td.name")].map((each) => each.textContent);
    """
    shown = result_of(site, script)
    assert shown["leads"] == ["2: a b", "\u2013", "\u2013"]
    assert shown["labels"] == ["Remove n1", "Promote n2", "Remove n2"]


@pytest.mark.parametrize(("names", "words"), [(["a"], "log"), (["a", "b"], "logs"), ([], "logs")])
def test_the_number_of_logs_has_its_noun(site: Path, names: list[str], words: str) -> None:
    script = """
      const { logsView } = await import("./logs.js");
      const view = logsView();
      holder.append(view.element);
      const log = (name) => ({ name, replicas: [], leader: null, committed_index: null });
      const logs = [...NAMES, "__controller"].map(log);
      view.refresh({ now_ms: 1, nodes: [], logs, append_counts: [], append_bounds_s: [] });
      result.figures = [...holder.querySelector(".figures").children].map((each) => each.textContent);
    """
    shown = result_of(site, script.replace("NAMES", json.dumps(names)))["figures"]
    assert isinstance(shown, list)
    assert f"{len(names)}{words}" in [each.replace(" ", "") for each in shown]
