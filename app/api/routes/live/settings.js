// What an operator changes of one log: settings, leadership, trim, deletion.

import { ask, count, h, table, toast } from "./dom.js";
import { call, fetchRaw, pathOf } from "./service.js";

const DAY_MS = 86_400_000;

export function settingsTab(log) {
  const list = h("div");
  let etag = null;
  let config = null;

  async function load() {
    const answer = await fetchRaw(pathOf(log));
    etag = answer.headers.get("etag");
    config = await answer.json();
    list.replaceChildren(table(
      [["Setting", ([name]) => name], ["Value", ([, value]) => (value === null ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value)), "value"]],
      Object.entries(config),
    ));
  }

  async function done(text, work) {
    try {
      await work();
      toast(text);
      await load();
    } catch (error) {
      toast(error.message, true);
    }
  }

  async function change() {
    const durability = h("select", {}, ["fsync", "replicated"].map((each) => h("option", { selected: each === config.durability }, each)));
    const days = h("input", { type: "number", min: "0", step: "any", value: config.retention?.ms ? config.retention.ms / DAY_MS : "", placeholder: "unlimited" });
    const mib = h("input", { type: "number", min: "1", value: config.retention?.bytes ? config.retention.bytes / 1_048_576 : "", placeholder: "unlimited" });
    const answer = await ask({
      title: `Change ${log}`,
      fields: [["durability", "Durability", durability], ["days", "Keep for days", days], ["mib", "Keep at most MiB", mib]],
      confirm: "Change",
    });
    if (!answer) return;
    const ms = answer.days ? Math.round(Number(answer.days) * DAY_MS) : null;
    const bytes = answer.mib ? Math.round(Number(answer.mib) * 1_048_576) : null;
    const body = { durability: answer.durability, retention: ms === null && bytes === null ? null : { ms, bytes } };
    await done("Settings changed", () => call(pathOf(log), { method: "PATCH", body, headers: etag ? { "if-match": etag } : {} }));
  }

  async function transfer() {
    const to = h("select", {}, config.replicas.map((each) => h("option", {}, each)));
    const answer = await ask({ title: `Transfer the leadership of ${log}`, fields: [["to", "New leader", to]], confirm: "Transfer" });
    if (answer) await done(`${answer.to} leads ${log}`, () => call("/v1/cluster/leader:transfer", { method: "POST", body: { to: answer.to, log }, timeoutMs: 20_000 }));
  }

  async function trim() {
    const until = h("input", { type: "number", min: "0", required: true });
    const answer = await ask({
      title: `Trim ${log}`,
      text: "Records before the index are deleted at every node. This cannot be undone.",
      fields: [["until", "Keep from index", until]],
      confirm: "Trim",
      danger: true,
    });
    if (answer) await done(`Trimmed to index ${count(Number(answer.until))}`, () => call(`${pathOf(log)}:trim`, { method: "POST", body: { until_index: Number(answer.until) } }));
  }

  async function remove() {
    const answer = await ask({ title: `Delete ${log}`, text: "The log and all its records are deleted at every node.", confirm: "Delete", danger: true, match: log });
    if (!answer) return;
    try {
      await call(pathOf(log), { method: "DELETE" });
      toast(`Log ${log} is being deleted`);
      location.hash = "#/";
    } catch (error) {
      toast(error.message, true);
    }
  }

  const guarded = (work) => () => { if (config) work(); };
  load().catch((error) => toast(error.message, true));
  return {
    element: h(
      "section",
      {},
      h("div", { class: "bar" }, h("h2", {}, "Settings"),
        h("button", { type: "button", onclick: guarded(change) }, "Change"),
        h("button", { type: "button", onclick: guarded(transfer) }, "Transfer leadership"),
        h("button", { type: "button", class: "danger", onclick: guarded(trim) }, "Trim"),
        h("button", { type: "button", class: "danger", onclick: guarded(remove) }, "Delete")),
      list,
    ),
    refresh: async () => {},
  };
}
