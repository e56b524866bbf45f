// The records of a log: pages by index, time or key, a live tail, a download, and a form that appends.

import { ask, badge, count, h, save, table, time, toast } from "./dom.js";
import { call, fetchRaw, pathOf } from "./service.js";

const PAGE = 50;
const TAIL_KEPT = 500;
const DOWNLOAD_RECORDS = 100_000;

export function recordsTab(log) {
  const path = `${pathOf(log)}/records`;
  const list = h("div");
  const status = h("p", { class: "soft", role: "status" });
  const start = h("select", {}, [["last", "newest"], ["earliest", "earliest"], ["index", "index"], ["time", "time"]].map(([value, text]) => h("option", { value }, text)));
  const at = h("input", { type: "text", inputmode: "numeric", placeholder: "index" });
  const key = h("input", { type: "search", placeholder: "any" });
  const tail = h("input", { type: "checkbox", onchange: follow });
  const earlier = h("button", { type: "button", onclick: () => turn(-1) }, "Earlier");
  const later = h("button", { type: "button", onclick: () => turn(1) }, "Later");
  let records = [];
  let next = null;
  let first = null;
  let following = 0; // the number of the tail that runs; another number ends it

  start.addEventListener("change", () => {
    at.type = start.value === "time" ? "datetime-local" : "text";
    at.placeholder = start.value === "index" ? "index" : "";
    at.disabled = !["index", "time"].includes(start.value);
  });
  at.disabled = true;

  const filters = () => (key.value ? { key: key.value } : {});

  async function read(query) {
    try {
      const page = await call(`${path}?${new URLSearchParams({ limit: PAGE, ...filters(), ...query })}`, { timeoutMs: 20_000 });
      records = page.records;
      next = page.next_index;
      first = records.length ? records[0].index : page.next_index;
      show(page.has_more ? "" : "end of the log");
    } catch (error) {
      status.textContent = error.message;
    }
  }

  async function open() {
    if (start.value === "earliest") await read({ from: "earliest" });
    else if (start.value === "index") await read({ from_index: at.value || 0 });
    else if (start.value === "time") await read({ from_timestamp: new Date(at.value).getTime() || 0 });
    else await read({ last: PAGE });
  }

  const turn = (way) => (way > 0 ? read({ from_index: next ?? 0 }) : read({ from_index: Math.max(0, (first ?? 0) - PAGE) }));

  function show(note) {
    const rows = following ? [...records].reverse() : records;
    list.replaceChildren(table(
      [
        ["Index", (record) => count(record.index), "number"],
        ["Time", (record) => time(record.timestamp)],
        ["Key", (record) => record.key ?? (record.key_base64 ? h("span", {}, record.key_base64, " ", badge("base64")) : "–"), "key"],
        ["Value", valueCell, "value"],
      ],
      rows,
      { caption: following ? "Live, newest first" : "By index", empty: "No record here" },
    ));
    const held = records.length ? `records ${count(records[0].index)} to ${count(records[records.length - 1].index)}` : "no records";
    status.textContent = note ? `${held}, ${note}` : held;
  }

  async function follow() {
    following = tail.checked ? following + 1 : 0;
    if (!following) { show(""); return; }
    const mine = following;
    await read({ last: PAGE });
    while (following === mine) {
      try {
        const query = new URLSearchParams({ from_index: next ?? 0, limit: 200, wait_ms: 5000, ...filters() });
        const page = await call(`${path}?${query}`, { timeoutMs: 15_000 });
        if (following !== mine) return;
        next = page.next_index;
        if (page.records.length) {
          records = [...records, ...page.records].slice(-TAIL_KEPT);
          show("live");
        }
      } catch (error) {
        status.textContent = `${error.message}, trying again`;
        await new Promise((resolve) => setTimeout(resolve, 1000));
      }
    }
  }

  async function download() {
    try {
      const query = new URLSearchParams({ from_index: first ?? 0, limit: DOWNLOAD_RECORDS, max_bytes: 64 << 20, ...filters() });
      const answer = await fetchRaw(`${path}?${query}`, { headers: { accept: "application/x-ndjson" }, timeoutMs: 60_000 });
      save(`${log}.ndjson`, await answer.blob());
      if (answer.headers.get("commitlog-has-more") === "true") {
        toast(`The file ends before index ${answer.headers.get("commitlog-next-index")}; the log has more`);
      }
    } catch (error) {
      toast(error.message, true);
    }
  }

  open();
  return {
    element: h(
      "section",
      {},
      h(
        "form",
        { class: "bar", onsubmit: (event) => { event.preventDefault(); open(); } },
        h("h2", {}, "Records"),
        h("label", {}, "From", start),
        h("label", {}, "At", at),
        h("label", {}, "Key", key),
        h("button", { class: "primary" }, "Read"),
        h("label", { style: "display:flex;align-items:center" }, tail, "Live tail"),
        h("button", { type: "button", onclick: download }, "Download"),
        h("button", { type: "button", onclick: () => produce(log).then((done) => done && !following && open()) }, "Append"),
      ),
      list,
      h("div", { class: "bar" }, status, h("span", { style: "margin-left:auto" }), earlier, later),
    ),
    close: () => { following = 0; },
    refresh: async () => {},
  };
}

function valueCell(record) {
  if (record.value === null || (record.value === undefined && record.value_base64 === undefined && record.value_json === undefined)) {
    return badge("tombstone", "warn");
  }
  const text = record.value ?? record.value_base64;
  const short = text.length > 140 ? `${text.slice(0, 140)}…` : text;
  const summary = h("summary", {}, short || h("span", { class: "soft" }, "empty"), record.value === undefined ? h("span", {}, " ", badge("base64")) : "");
  const whole = h("details", {}, summary);
  whole.addEventListener("toggle", () => {
    if (!whole.open || whole.childElementCount > 1) return;
    whole.append(
      h("pre", {}, pretty(text)),
      record.headers?.length ? table([["Header", (pair) => pair[0]], ["Value", (pair) => (typeof pair[1] === "object" ? JSON.stringify(pair[1]) : pair[1])]], record.headers) : "",
      h("p", { class: "soft" }, `term ${record.term}, offset ${count(record.offset)}, ${record.type}`),
    );
  });
  return whole;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

async function produce(log) {
  const key = h("input", { autocomplete: "off" });
  const value = h("textarea", { rows: "6" });
  const headers = h("textarea", { rows: "2", placeholder: "name: value, one a line" });
  const answer = await ask({
    title: `Append a record to ${log}`,
    fields: [["key", "Key (empty: none)", key], ["value", "Value", value], ["headers", "Headers", headers]],
    confirm: "Append",
  });
  if (!answer) return false;
  const record = { value: answer.value };
  if (answer.key) record.key = answer.key;
  const pairs = answer.headers.split("\n").filter((line) => line.includes(":"));
  if (pairs.length) record.headers = pairs.map((line) => [line.slice(0, line.indexOf(":")).trim(), line.slice(line.indexOf(":") + 1).trim()]);
  try {
    const done = await call(`${pathOf(log)}/records`, { method: "POST", body: record });
    toast(`Committed at index ${count(done.first_index)}, term ${done.term}`);
    return true;
  } catch (error) {
    toast(`${error.message} (${error.document?.outcome ?? "outcome unknown"})`, true);
    return false;
  }
}
