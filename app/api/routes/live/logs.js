// All logs of the cluster, and the creation of one.

import { LineChart, quantile, Series } from "./charts.js";
import { ask, badge, byId, bytes, COLORS, count, figure, h, indexes, minus, named, table, toast, update } from "./dom.js";
import { fetchRaw } from "./service.js";

const LINES = 8; // as many as there are distinct colours

export function logsView() {
  const figures = h("div", { class: "figures" });
  const list = h("div");
  const rateChart = new LineChart({
    label: "Committed records per second, of the busiest logs",
    format: (value) => count(Math.round(value)),
    colors: colorOfLog,
  });
  const system = h("input", { type: "checkbox", onchange: () => shown && show(shown) });
  const search = h("input", { type: "search", placeholder: "contains", oninput: () => shown && show(shown) });
  const element = h(
    "div",
    { style: "display:contents" },
    h("section", {}, figures),
    h(
      "section",
      {},
      h("div", { class: "bar" }, h("h1", {}, "Logs"),
        h("label", {}, "Name", search),
        h("label", { style: "display:flex;align-items:center" }, system, "System logs"),
        h("button", { class: "primary", type: "button", onclick: create }, "Create log")),
      list,
    ),
    h("section", {}, h("h2", {}, "Committed records per second ", h("small", {}, `of the ${LINES} busiest logs`)), rateChart.element),
  );
  const series = new Series();
  let before = null;
  let shown = null;
  const rates = new Map();

  function show(overview) {
    const alive = living(overview);
    const wanted = search.value.toLowerCase();
    const rows = overview.logs
      .filter((log) => (system.checked || !log.name.startsWith("__")) && log.name.includes(wanted))
      .sort((one, other) => (one.name < other.name ? -1 : 1));
    update(list, table(
      [
        ["Log", (log) => h("a", { href: `#/logs/${encodeURIComponent(log.name)}` }, log.name), "name"],
        ["Mode", (log) => log.replication],
        ["Leader", (log) => named(alive.has(log.leader) ? log.leader : null)],
        ["Replicas", (log) => log.replicas.join(" ")],
        ["Indexes", (log) => indexes(log.begin_index, log.committed_index), "number"],
        ["Size", (log) => bytes(log.size_bytes), "number"],
        ["Records/s", (log) => count(rates.get(log.name) ?? null), "number"],
        ["Records behind", (log) => count(log.lag_records), "number"],
        ["State", (log) => [stateOf(log, alive), ...(log.tables_job === "failed" ? [" ", badge("Spark job failed", "warn")] : [])]],
      ],
      rows,
      {
        caption: "Committed indexes that the log still has, control records included. The leader reports size, rate, and the records that the slowest replica lacks",
        empty: wanted ? "No such log" : "No log yet",
        key: (log) => log.name,
        stacks: true,
      },
    ));
  }

  return {
    element,
    close: () => rateChart.close(),
    refresh(overview) {
      shown = overview;
      const now = new Map(overview.logs.map((log) => [log.name, log.committed_index]));
      const points = {};
      if (before && overview.now_ms > before.at) {
        for (const [name, committed] of now) {
          const old = before.committed.get(name);
          if (committed === null || old === undefined || old === null) continue;
          const rate = Math.max(0, Number(minus(committed, old))) / ((overview.now_ms - before.at) / 1000);
          rates.set(name, Math.round(rate));
          if (!name.startsWith("__")) points[name] = rate;
        }
        series.add(overview.now_ms, points);
        rateChart.show(series, series.largest(LINES));
      }
      const after = overview.append_counts;
      const p50 = before && quantile(overview.append_bounds_s, before.counts, after, 0.5);
      const p99 = before && quantile(overview.append_bounds_s, before.counts, after, 0.99);
      const ms = (seconds) => (seconds === null ? "–" : `${(seconds * 1000).toFixed(1)} ms`);
      const own = overview.logs.filter((log) => !log.name.startsWith("__"));
      const headless = own.filter((log) => !living(overview).has(log.leader)).length;
      const expected = overview.nodes.filter((node) => node.alive || !node.outside);
      const alive = expected.filter((node) => node.alive).length;
      update(
        figures,
        figure(`${alive} of ${expected.length}`, "nodes connected"),
        figure(count(own.length), own.length === 1 ? "log" : "logs"),
        ...(headless ? [figure(count(headless), headless === 1 ? "log without a leader" : "logs without a leader")] : []),
        figure(count([...rates.values()].reduce((sum, rate) => sum + rate, 0)), "records per second"),
        figure(ms(p50), "append p50 at the leaders"),
        figure(ms(p99), "append p99 at the leaders"),
      );
      before = { at: overview.now_ms, committed: now, counts: after };
      show(overview);
    },
  };
}

const living = (overview) => new Set(overview.nodes.filter((node) => node.alive).map((node) => node.id));

// A leader without a connection is not one: the log waits for another.
function stateOf(log, alive) {
  const missing = log.replicas.filter((node) => !alive.has(node));
  if (!alive.has(log.leader)) return badge("no leader", "bad");
  if (log.repairing) return badge("repairing", "warn");
  return missing.length ? badge(`without ${missing.join(" ")}`, "warn") : badge("serving", "good");
}

const placeOf = new Map(); // a log keeps the colour that it got first

function colorOfLog(name) {
  if (!placeOf.has(name)) placeOf.set(name, placeOf.size);
  return COLORS[placeOf.get(name) % COLORS.length];
}

async function create() {
  const name = h("input", { required: true, pattern: "[a-z0-9][a-z0-9._\\-]{0,127}", placeholder: "orders", title: "1 to 128 characters of a-z, 0-9, ., _ and -, the first one a letter or a digit" });
  const mode = h("select", {}, ["raft", "controller", "classic"].map((each) => h("option", {}, each)));
  const durability = h("select", {}, ["fsync", "replicated"].map((each) => h("option", {}, each)));
  const replicas = h("input", { type: "number", min: "1", placeholder: "all nodes" });
  const created = await ask({
    title: "Create a log",
    fields: [["name", "Name", name], ["replication", "Replication", mode], ["durability", "Durability", durability], ["replicas", "Replicas", replicas]],
    confirm: "Create",
    act: async (given) => {
      const body = { name: given.name, replication: given.replication, durability: given.durability };
      if (given.replicas) body.replicas = Number(given.replicas);
      const { status } = await fetchRaw("/v1/logs", { method: "POST", body });
      toast(status === 201 ? `Log ${given.name} was created` : `Log ${given.name} existed with these settings`);
      location.hash = `#/logs/${encodeURIComponent(given.name)}`;
      return true;
    },
  });
  if (created) byId("view").focus(); // of the new log; otherwise the button has the focus again
}
