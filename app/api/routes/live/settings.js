// What an operator changes of one log: settings, leadership, election, trim, deletion.

import { ask, bytes, count, h, table, toast } from "./dom.js";
import { call, fetchRaw, json, parse, pathOf } from "./service.js";

const DAY_MS = 86_400_000;
const NOT_IN_RAFT = ["min_in_sync_replicas", "unclean"]; // without effect there
const DEFAULT = "default of the cluster ([retention])";

function text(name, value) {
  if (name === "retention") {
    const { ms, bytes: size } = value ?? {};
    return [ms && `${Number(ms) / DAY_MS} days`, size && bytes(size)].filter(Boolean).join(", ") || DEFAULT;
  }
  if (Array.isArray(value)) return value.join(" ");
  return typeof value === "object" ? json(value) : String(value);
}

// Settings without a value, and those that the mode does not use, only distract.
function isShown([name, value], mode) {
  if (name === "retention") return true;
  if (value === null || (mode === "raft" && NOT_IN_RAFT.includes(name))) return false;
  return typeof value !== "object" || Object.keys(value).length > 0;
}

export function settingsTab(log) {
  const list = h("div");
  let etag = null;
  let config = null;

  async function load() {
    const answer = await fetchRaw(pathOf(log));
    etag = answer.headers.get("etag");
    config = parse(await answer.text());
    transferButton.hidden = config.replication === "classic"; // its master is configured
    electButton.hidden = config.replication !== "controller";
    list.replaceChildren(table(
      [["Setting", ([name]) => name], ["Value", ([name, value]) => text(name, value), "value"]],
      Object.entries(config).filter((setting) => isShown(setting, config.replication)),
    ));
  }

  // text(answer): what has happened.
  async function done(text, path, options) {
    toast(text(await call(path, options)));
    load().catch((error) => toast(error.message, true));
  }

  async function change() {
    await load();
    const durability = h("select", {}, ["fsync", "replicated"].map((each) => h("option", { selected: each === config.durability }, each)));
    const days = h("input", { type: "number", min: "0", step: "any", value: config.retention?.ms ? Number(config.retention.ms) / DAY_MS : "", placeholder: "default" });
    const mib = h("input", { type: "number", min: "0", step: "any", value: config.retention?.bytes ? Number(config.retention.bytes) / 1_048_576 : "", placeholder: "default" });
    await ask({
      title: `Change ${log}`,
      fields: [["durability", "Durability", durability], ["days", "Keep for days", days], ["mib", "Keep at most MiB", mib]],
      confirm: "Change",
      act: (given) => {
        const ms = given.days ? Math.round(Number(given.days) * DAY_MS) : null;
        const size = given.mib ? Math.round(Number(given.mib) * 1_048_576) : null;
        const body = { durability: given.durability, retention: ms === null && size === null ? null : { ms, bytes: size } };
        return done(() => "Settings changed", pathOf(log), { method: "PATCH", body, headers: etag ? { "if-match": etag } : {} });
      },
    });
  }

  async function transfer() {
    const { leader } = await call(`${pathOf(log)}/tail?consistency=committed`);
    const others = config.replicas.filter((each) => each !== leader);
    if (!others.length) { toast(`No other node keeps ${log}`, true); return; }
    const to = h("select", {}, others.map((each) => h("option", {}, each)));
    await ask({
      title: `Transfer the leadership of ${log}`,
      fields: [["to", "New leader", to]],
      confirm: "Transfer",
      act: (given) => done((answer) => `${answer.leader} leads ${log}`, "/v1/cluster/leader:transfer", { method: "POST", body: { to: given.to, log }, timeoutMs: 20_000 }),
    });
  }

  async function elect() {
    const candidate = h("select", {}, h("option", { value: "" }, "any in sync"), config.replicas.map((each) => h("option", {}, each)));
    const unclean = h("select", {}, h("option", { value: "" }, "no"), h("option", { value: "yes" }, "yes: acknowledged records may be lost"));
    await ask({
      title: `Elect a master of ${log}`,
      text: "A live master stays, unless another node is named. A node that is not in sync is elected only if that is allowed here.",
      fields: [["candidate", "Master", candidate], ["unclean", "Allow a node that is not in sync", unclean]],
      confirm: "Elect",
      danger: true,
      match: log,
      act: (given) => {
        const body = { candidate: given.candidate || null, unclean: given.unclean === "yes" };
        return done((answer) => `${answer.master} is master of ${log} in epoch ${answer.epoch}`, `${pathOf(log)}:elect`, { method: "POST", body, timeoutMs: 20_000 });
      },
    });
  }

  async function trim() {
    const until = h("input", { type: "number", min: "0", required: true });
    await ask({
      title: `Trim ${log}`,
      text: "Records before the index are deleted at every node. This cannot be undone.",
      fields: [["until", "Keep from index", until]],
      confirm: "Trim",
      danger: true,
      act: (given) => {
        const until = Number(given.until);
        const body = { until_index: Number.isSafeInteger(until) ? until : parse(given.until) };
        return done((answer) => `${log} begins at index ${count(answer.begin_index)}`, `${pathOf(log)}:trim`, { method: "POST", body });
      },
    });
  }

  async function remove() {
    await ask({
      title: `Delete ${log}`,
      text: "The log and all its records are deleted at every node.",
      confirm: "Delete",
      danger: true,
      match: log,
      act: async () => {
        await call(pathOf(log), { method: "DELETE" });
        toast(`Log ${log} is being deleted`);
        location.hash = "#/";
      },
    });
  }

  const guarded = (work) => () => { if (config) work().catch((error) => toast(error.message, true)); };
  const transferButton = h("button", { type: "button", onclick: guarded(transfer) }, "Transfer leadership");
  const electButton = h("button", { type: "button", class: "danger", hidden: true, onclick: guarded(elect) }, "Elect");
  load().catch(() => {}); // refresh repeats it, and reports the error
  return {
    element: h(
      "section",
      {},
      h("div", { class: "bar" }, h("h2", {}, "Settings"),
        h("button", { type: "button", onclick: guarded(change) }, "Change"),
        transferButton, electButton,
        h("button", { type: "button", class: "danger", onclick: guarded(trim) }, "Trim"),
        h("button", { type: "button", class: "danger", onclick: guarded(remove) }, "Delete")),
      list,
    ),
    refresh: async () => { if (!config) await load(); },
  };
}
