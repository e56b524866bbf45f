// One log: who holds how much, its records, schema, epochs, events, tables, cursors and settings.

import { drawEpochs, LineChart, Series } from "./charts.js";
import { badge, bytes, count, duration, figure, h, largest, minus, named, plus, roleBadge, swatch, table, time, update } from "./dom.js";
import { recordsTab } from "./records.js";
import { call, json, pathOf, Problem } from "./service.js";
import { settingsTab } from "./settings.js";

const SILENT_MS = 60_000; // as for `commitlog tables`
const TABS = ["overview", "records", "schema", "epochs", "events", "tables", "cursors", "settings"];
const MAKERS = { overview: overviewTab, records: recordsTab, schema: schemaTab, epochs: epochsTab, events: eventsTab, tables: tablesTab, cursors: cursorsTab, settings: settingsTab };

export function logView(log, name) {
  const chosen = TABS.includes(name) ? name : "overview";
  const tab = MAKERS[chosen](log);
  const tabs = h("nav", { class: "tabs", "aria-label": `Parts of ${log}` }, TABS.map((each) => h(
    "a",
    { href: `#/logs/${encodeURIComponent(log)}/${each}`, "aria-current": each === chosen ? "page" : null },
    each[0].toUpperCase() + each.slice(1),
  )));
  const head = h("section", {}, h("div", { class: "bar" }, h("h1", {}, log)), tabs);
  const element = h("div", { style: "display:contents" }, head, tab.element);
  const missing = h("section", { role: "alert" }, `The log ${log} does not exist. `, h("a", { href: "#/" }, "All logs"));
  return {
    element,
    close: () => tab.close?.(),
    async refresh(overview) {
      let part = tab.element;
      try {
        await tab.refresh(overview);
      } catch (error) {
        if (!(error instanceof Problem && error.code === "log-not-found")) throw error;
        part = missing; // it may be created later
      }
      if (element.lastChild !== part) element.lastChild.replaceWith(part);
    },
  };
}

export const stateOf = (log, part) => call(`/ui/log.json?log=${encodeURIComponent(log)}&part=${part}`);

function overviewTab(log) {
  const figures = h("div", { class: "figures" });
  const nodes = h("div");
  const rate = new LineChart({ label: "Committed records per second", format: (value) => count(Math.round(value)), colors: () => "#2f6fd0" });
  const lag = new LineChart({ label: "Records that each node lacks, as the leader knows it", format: (value) => count(Math.round(value)) });
  const rates = new Series();
  const history = new Series();
  let before = null;
  return {
    element: h(
      "div",
      { style: "display:contents" },
      h("section", {}, figures),
      h("section", {}, h("h2", {}, "Nodes"), nodes),
      h("section", {}, h("h2", {}, "Committed records per second"), rate.element),
      h("section", {}, h("h2", {}, "Records behind the leader, by node"), lag.element),
    ),
    close: () => { rate.close(); lag.close(); },
    async refresh() {
      const state = await stateOf(log, "nodes");
      const seen = state.nodes.map((node) => node.status).filter(Boolean);
      const leading = seen.find((status) => ["leader", "master"].includes(status.role));
      const committed = largest(-1, ...seen.map((status) => status.committed_index));
      const behind = lags(state.nodes, leading);
      let perSecond = null;
      if (before && state.now_ms > before.at) {
        perSecond = Math.max(0, Number(minus(committed, before.committed))) / ((state.now_ms - before.at) / 1000);
        rates.add(state.now_ms, { "records/s": perSecond });
        rate.show(rates);
      }
      before = { at: state.now_ms, committed };
      history.add(state.now_ms, behind);
      lag.show(history);
      update(
        figures,
        figure(leading ? named(leading.node) : "none", leading ? leading.role : "leader"),
        figure(leading ? count(leading.term) : "–", "term"),
        figure(count(committed), "committed index"),
        figure(perSecond === null ? "–" : count(Math.round(perSecond)), "records per second"),
        figure(bytes(state.size_bytes), "stored"),
        figure(state.replication, "mode"),
      );
      const peers = new Map((leading ? leading.peers : []).map((peer) => [peer.id, peer]));
      update(nodes, table(
        [
          ["Node", (node) => named(node.id)],
          ["Role", (node) => roleBadge(node.status ? node.status.role : "no status")],
          ["State", (node) => progress(peers.get(node.id))],
          ["Term", (node) => count(node.status?.term), "number"],
          ["Begin", (node) => count(node.status?.begin_index), "number"],
          ["End", (node) => count(node.status?.end_index), "number"],
          ["Committed", (node) => count(node.status?.committed_index), "number"],
          ["Watermark", (node) => known(peers.get(node.id)?.watermark), "number"],
          ["Records behind", (node) => (behind[node.id] === null ? "unknown" : count(behind[node.id])), "number"],
          ["Bytes behind", (node) => (peers.get(node.id)?.unreachable_since_ms ? "unknown" : bytes(peers.get(node.id)?.lag_bytes)), "number"],
        ],
        state.nodes,
        { caption: "The leader reports state, watermark, and what a replica lacks", key: (node) => node.id, stacks: true },
      ));
    },
  };
}

// A peer that does not answer keeps its last known state, which may be outdated.
const progress = (peer) => (peer?.unreachable_since_ms ? badge(`no answer since ${time(peer.unreachable_since_ms).slice(0, -4)}`, "bad") : peer?.state ?? "–");

// The records that each node lacks, by id; null: unknown. The statuses of the nodes are of different moments, so that a
// leader would seem to lack what its followers have got since: what it knows of them is of one moment.
export function lags(nodes, leading) {
  const watermarks = new Map((leading ? leading.peers : []).map((peer) => [peer.id, peer.watermark]));
  const of = (node) => {
    if (!leading) return null;
    if (node.id === leading.node) return 0;
    const watermark = watermarks.get(node.id) ?? -1;
    return watermark === -1 ? null : Math.max(0, Number(minus(leading.end_index, watermark)));
  };
  return Object.fromEntries(nodes.map((node) => [node.id, of(node)]));
}

// A new leader has no watermark of a peer that has not answered it yet.
const known = (watermark) => (watermark === -1 ? "unknown" : count(watermark));

function epochsTab(log) {
  const canvas = h("canvas", { class: "strip", role: "img", "aria-label": "Epochs of the log, one stretch for each, in the leader's colour" });
  const legend = h("div", { class: "legend" });
  const list = h("div");
  const leader = h("select", { onchange: () => show() }, h("option", { value: "" }, "all"));
  const limit = h("select", { onchange: () => show() }, ["50", "200", "1000"].map((each) => h("option", {}, each)));
  let state = null;

  function show() {
    const end = largest(0, ...state.nodes.map((node) => (node.status ? node.status.next_index : 0)));
    drawEpochs(canvas, state.epochs, end);
    const leaders = [...new Set(state.epochs.map((epoch) => epoch.leader).filter(Boolean))].sort();
    legend.replaceChildren(...leaders.map((each) => h("span", {}, swatch(each), each)));
    const options = ["", ...leaders];
    if (leader.options.length !== options.length) {
      const chosen = leader.value;
      leader.replaceChildren(...options.map((each) => h("option", { value: each, selected: each === chosen }, each || "all")));
    }
    const left = state.epoch_count - state.epochs.length;
    const older = left ? `; ${count(left)} older ones are not shown` : "";
    const rows = state.epochs.filter((epoch) => !leader.value || epoch.leader === leader.value).reverse();
    update(list, table(
      [
        ["Epoch", (epoch) => count(epoch.epoch), "number"],
        ["Leader", (epoch) => named(epoch.leader)],
        ["Start index", (epoch) => count(epoch.start_index), "number"],
        ["End index", (epoch) => (epoch.end_index === null ? "open" : count(epoch.end_index)), "number"],
        ["Indexes", (epoch) => count(minus(epoch.end_index === null ? end : plus(epoch.end_index, 1), epoch.start_index)), "number"],
        ["Started", (epoch) => time(epoch.started_ms)],
      ],
      rows.slice(0, Number(limit.value)),
      { caption: `${count(Math.min(rows.length, Number(limit.value)))} of ${count(rows.length)} epochs, newest first${older}`, key: (epoch) => epoch.epoch },
    ));
  }

  return {
    element: h("section", {}, h("div", { class: "bar" }, h("h2", {}, "Epochs"), field("Leader", leader), field("Show", limit)), canvas, legend, list),
    async refresh() {
      state = await stateOf(log, "epochs");
      show();
    },
  };
}

const field = (text, input) => h("label", {}, text, input);

function details(event) {
  return Object.entries(event.data)
    .filter(([name, value]) => value !== null && !["term", "epoch", "started_ms"].includes(name))
    .map(([name, value]) => `${name} ${typeof value === "object" ? json(value) : value}`)
    .join(", ");
}

function eventsTab(log) {
  const list = h("div");
  const kind = h("select", { onchange: () => show() }, h("option", { value: "" }, "all"));
  const text = h("input", { type: "search", placeholder: "contains", oninput: () => show() });
  let state = null;

  function show() {
    const kinds = ["", ...new Set(state.events.map((event) => event.kind))];
    if (kind.options.length !== kinds.length) {
      const chosen = kind.value;
      kind.replaceChildren(...kinds.map((each) => h("option", { value: each, selected: each === chosen }, each || "all")));
    }
    const wanted = text.value.toLowerCase();
    const rows = state.events.filter((event) => (!kind.value || event.kind === kind.value) && details(event).toLowerCase().includes(wanted));
    update(list, table(
      [
        ["Time", (event) => time(event.timestamp)],
        ["Kind", (event) => badge(event.kind, event.kind === "corruption" || event.data.refused ? "bad" : "")],
        ["Term", (event) => count(event.term), "number"],
        ["Details", details, "value"],
      ],
      rows,
      { caption: `Journal of ${state.node}, newest first, without watermarks`, empty: "No such event", key: (event) => event.seq, fixed: true, stacks: true },
    ));
  }

  return {
    element: h("section", {}, h("div", { class: "bar" }, h("h2", {}, "Events"), field("Kind", kind), field("Text", text)), list),
    async refresh() {
      state = await stateOf(log, "events");
      show();
    },
  };
}

function tablesTab(log) {
  const list = h("div");
  return {
    element: h("section", {}, h("h2", {}, "Delta tables"), list),
    async refresh({ now_ms: now }) {
      const { tables, job } = await call(`${pathOf(log)}/tables`);
      const words = job && (failureOf(job) ?? silenceOf(job, now));
      const failure = words && h("p", { role: "alert", class: "refusal" }, words);
      update(list, ...[failure].filter(Boolean), table(
        [
          ["Table", (each) => each.name],
          ["Version", (each) => count(each.version), "number"],
          ["Materialized index", (each) => count(each.materialized_index), "number"],
          ["Records behind", (each) => count(each.lag_records), "number"],
          ["Oldest waits", (each) => duration(each.lag_ms), "number"],
          ["Last commit", (each) => (each.committed_ms === null ? "–" : time(each.committed_ms))],
          ["Path", (each) => each.path, "value"],
          ...(tables.some((each) => each.catalog_name) ? [["In the catalog", (each) => each.catalog_name ?? "–", "value"]] : []),
        ],
        tables,
        { caption: job && !failure ? `Spark job: ${job.state}, reported ${time(job.updated_ms)}` : null, empty: ["This node knows no Delta tables of the log. Set ", h("code", {}, "[tables] path"), ", and run ", h("code", {}, "commitlog materialize"), "."], stacks: true },
      ));
    },
  };
}

function failureOf({ state, error, failed_ms: failed, updated_ms: reported }) {
  if (state !== "failed") return null;
  const when = failed === null ? `(reported ${time(reported)})` : `since ${time(failed)}`;
  return `The Spark job of this log has failed ${when}: ${error ?? "the lines that it printed have the reason"}`;
}

// A running job reports twice a second.
function silenceOf({ state, updated_ms: reported }, now) {
  if (state !== "running" || !(now - reported > SILENT_MS)) return null;
  return `The Spark job of this log has not reported for ${duration(now - reported)}, since ${time(reported)}, when it was running: `
    + "check that its process runs, and that the disk of the tables has space";
}

function schemaTab(log) {
  const parts = h("div");
  let shown = null; // version
  return {
    element: h("section", {}, h("h2", {}, "Schema"), parts),
    async refresh() {
      const { schema_version: version = 0 } = await call(`${pathOf(log)}/tail?consistency=committed`);
      if (version === shown) return;
      const { schemas } = await call(`${pathOf(log)}/schemas?consistency=committed`);
      shown = version;
      const newest = schemas[schemas.length - 1];
      parts.replaceChildren(
        table(
          [
            ["Version", (each) => count(each.version), "number"],
            ["Index", (each) => count(each.index), "number"],
            ["Format", (each) => (each.message ? `${each.format} ${each.message}` : each.format)],
            ["Columns", (each) => count(each.columns.length), "number"],
            ["Key", (each) => each.key_columns.join(", ") || "key of the record"],
            ["Compatibility", (each) => each.compatibility],
            ["Other records", (each) => badge(each.on_invalid === "reject" ? "rejected" : "stored", each.on_invalid === "reject" ? "warn" : "")],
          ],
          schemas.slice().reverse(),
          { caption: "Versions, newest first", empty: ["No schema yet. Set one by ", h("code", {}, `commitlog schema set FILE --log ${log}`), "."] },
        ),
        ...(newest
          ? [
            table(
              [
                ["Column", (column) => column.name],
                ["Type", (column) => column.type, "value"],
                ["Null", (column) => (column.nullable ? "yes" : "no")],
                ["Comment", (column) => column.comment, "value"],
              ],
              newest.columns,
              { caption: `Columns of version ${newest.version}` },
            ),
            ...(newest.format === "protobuf" ? [] : [h("h3", {}, "Definition"), h("pre", {}, newest.definition)]),
          ]
          : []),
      );
    },
  };
}

function cursorsTab(log) {
  const list = h("div");
  return {
    element: h("section", {}, h("h2", {}, "Cursors"), list),
    async refresh() {
      const state = await stateOf(log, "cursors");
      const end = largest(-1, ...state.nodes.map((node) => node.status?.committed_index ?? -1));
      update(list, table(
        [
          ["Cursor", (cursor) => cursor.name],
          ["Next index", (cursor) => count(cursor.index), "number"],
          ["Indexes behind", (cursor) => count(largest(0, minus(plus(end, 1), cursor.index))), "number"],
          ["Holds retention back", (cursor) => (cursor.fence ? badge("yes", "warn") : "no")],
        ],
        state.cursors,
        { caption: "Indexes of control records count too; each move of a cursor adds one", empty: "No cursor yet" },
      ));
    },
  };
}
