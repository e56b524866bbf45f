// All logs of the cluster, and the creation of one.

import { LineChart, quantile, Series } from "./charts.js";
import { ask, badge, byId, bytes, count, figure, h, named, table, toast } from "./dom.js";
import { call } from "./service.js";

export function logsView() {
  const figures = h("div", { class: "figures" });
  const list = h("div");
  const rateChart = new LineChart({
    label: "Committed records per second, by log",
    format: (value) => count(Math.round(value)),
    colors: colorOfLog,
  });
  const system = h("input", { type: "checkbox", onchange: () => shown && show(shown) });
  const element = h(
    "div",
    { style: "display:contents" },
    h("section", {}, figures),
    h(
      "section",
      {},
      h("div", { class: "bar" }, h("h1", {}, "Logs"),
        h("label", { style: "display:flex;align-items:center" }, system, "System logs"),
        h("button", { class: "primary", type: "button", onclick: create }, "Create log")),
      list,
    ),
    h("section", {}, h("h2", {}, "Committed records per second ", h("small", {}, "last five minutes, by log")), rateChart.element),
  );
  const series = new Series();
  let before = null;
  let shown = null;
  const rates = new Map();

  function show(overview) {
    const rows = overview.logs.filter((log) => system.checked || !log.name.startsWith("__"));
    list.replaceChildren(table(
      [
        ["Log", (log) => h("a", { href: `#/logs/${encodeURIComponent(log.name)}` }, log.name)],
        ["Mode", (log) => log.replication],
        ["Leader", (log) => named(log.leader)],
        ["Replicas", (log) => log.replicas.join(" ")],
        ["Records", (log) => count(log.records), "number"],
        ["Size", (log) => bytes(log.size_bytes), "number"],
        ["Records/s", (log) => count(rates.get(log.name) ?? null), "number"],
        ["Behind", (log) => count(log.lag_records), "number"],
        ["State", (log) => (log.repairing ? badge("repairing", "warn") : log.leader ? badge("serving", "good") : badge("no leader", "bad"))],
      ],
      rows,
      { caption: `As ${overview.node} knows them; “behind” is known at the leader`, empty: "No log yet" },
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
          const rate = Math.max(0, committed - old) / ((overview.now_ms - before.at) / 1000);
          rates.set(name, Math.round(rate));
          if (!name.startsWith("__")) points[name] = rate;
        }
        series.add(overview.now_ms, points);
        rateChart.show(series);
      }
      const after = overview.append_counts;
      const p50 = before && quantile(overview.append_bounds_s, before.counts, after, 0.5);
      const p99 = before && quantile(overview.append_bounds_s, before.counts, after, 0.99);
      const ms = (seconds) => (seconds === null ? "–" : `${(seconds * 1000).toFixed(1)} ms`);
      const alive = overview.nodes.filter((node) => node.alive).length;
      figures.replaceChildren(
        figure(`${alive} of ${overview.nodes.length}`, "nodes connected"),
        figure(count(overview.logs.filter((log) => !log.name.startsWith("__")).length), "logs"),
        figure(count([...rates.values()].reduce((sum, rate) => sum + rate, 0)), "records per second"),
        figure(ms(p50), `append p50 at ${overview.node}`),
        figure(ms(p99), `append p99 at ${overview.node}`),
      );
      before = { at: overview.now_ms, committed: now, counts: after };
      show(overview);
    },
  };
}

function colorOfLog(name) {
  let place = 7;
  for (const letter of name) place = (place * 31 + letter.charCodeAt(0)) % 360;
  return `hsl(${place} 55% 48%)`;
}

async function create() {
  const name = h("input", { required: true, pattern: "[a-z0-9][a-z0-9._\\-]{0,127}", placeholder: "orders" });
  const mode = h("select", {}, ["raft", "controller", "classic"].map((each) => h("option", {}, each)));
  const durability = h("select", {}, ["fsync", "replicated"].map((each) => h("option", {}, each)));
  const replicas = h("input", { type: "number", min: "1", placeholder: "all nodes" });
  const answer = await ask({
    title: "Create a log",
    fields: [["name", "Name", name], ["replication", "Replication", mode], ["durability", "Durability", durability], ["replicas", "Replicas", replicas]],
    confirm: "Create",
  });
  if (!answer) return;
  const body = { name: answer.name, replication: answer.replication, durability: answer.durability };
  if (answer.replicas) body.replicas = Number(answer.replicas);
  try {
    await call("/v1/logs", { method: "POST", body });
    toast(`Log ${answer.name} was created`);
    location.hash = `#/logs/${encodeURIComponent(answer.name)}`;
  } catch (error) {
    toast(error.message, true);
  }
  byId("view").focus();
}
