// The records of a log: pages by index, time or key, a live tail, a download, and a form that appends.

import { ask, badge, count, h, indexes, largest, minus, save, table, time, toast, update } from "./dom.js";
import { call, fetchRaw, pathOf } from "./service.js";

const PAGE = 50;
const SHOWN = 140; // characters of a key or a value until it is opened
const TAIL_KEPT = 500;
const DOWNLOAD_RECORDS = 100_000;
const SEARCHED_MOST = 100_000; // indexes in one call

export function recordsTab(log) {
  const path = `${pathOf(log)}/records`;
  const list = h("div");
  const status = h("p", { class: "soft", role: "status" });
  const start = h("select", {}, [["last", "newest"], ["earliest", "earliest"], ["index", "index"], ["time", "time"]].map(([value, text]) => h("option", { value }, text)));
  const at = h("input", { type: "text", inputmode: "numeric", placeholder: "index" });
  const key = h("input", { type: "search", placeholder: "any" });
  const tail = h("input", { type: "checkbox", onchange: follow });
  const earlier = turn("Earlier", () => before(first));
  const later = turn("Later", () => read({ from_index: next }, true));
  let records = [];
  let next = null;
  let first = 0;
  let newestFirst = true;
  let calls = 0; // a later call ends an earlier one
  let tails = 0; // a later tail ends an earlier one

  // At an end of the log the button has no effect, and keeps the focus.
  function turn(text, show) {
    const button = h("button", { type: "button", "aria-disabled": "true", onclick: () => button.ariaDisabled === "true" || choose(show) }, text);
    return button;
  }

  function atEnds(begin, isEnd) {
    earlier.ariaDisabled = first <= largest(0, begin);
    later.ariaDisabled = isEnd;
  }

  start.addEventListener("change", () => {
    at.type = start.value === "time" ? "datetime-local" : "text";
    at.placeholder = start.value === "index" ? "index" : "";
    at.required = ["index", "time"].includes(start.value);
    at.disabled = !at.required;
  });
  at.disabled = true;

  let consistency = {}; // as the route has it by default: what a majority confirms
  const filters = () => ({ ...consistency, ...(key.value ? { key: key.value } : {}) });

  const get = (query) => call(`${path}?${new URLSearchParams({ ...filters(), ...query })}`, { timeoutMs: 20_000 });

  async function attempt(work) {
    calls += 1;
    const mine = calls;
    try {
      await work(() => mine === calls);
    } catch (error) {
      if (mine === calls) refused(error);
    }
  }

  function refused(error) {
    const local = () => { consistency = { consistency: "committed" }; open(); };
    status.textContent = "";
    list.replaceChildren(
      h("p", { role: "alert" }, error.status === 401 ? "Log in to read the records" : error.message),
      error.code === "read-index-unavailable" ? h("button", { type: "button", onclick: local }, "Show the committed records of this node") : "",
    );
  }

  // keeps: the records that are shown remain if the page has none.
  const read = (query, keeps = false) => attempt(async (current) => {
    const page = await get({ limit: PAGE, ...query });
    if (!current()) return;
    next = page.next_index;
    if (page.records.length || !keeps) {
      records = page.records;
      first = query.from_index ?? (query.from ? largest(0, page.begin_index) : records[0]?.index ?? next);
    }
    atEnds(page.begin_index, !page.has_more);
    show(page.has_more ? "" : "end of the log");
  });

  // The newest records before an index; without an index, of the log. With a key, larger and larger parts are searched.
  const before = (end) => attempt(async (current) => {
    records = [];
    show("searching");
    const edge = await get({ last: 1 });
    if (!current()) return;
    const stop = end < edge.next_index ? end : edge.next_index;
    const begin = largest(0, edge.begin_index);
    let found = [];
    let from = largest(begin, stop);
    for (let size = PAGE; from > begin && found.length < PAGE; size = Math.min(4 * size, SEARCHED_MOST)) {
      const until = from; // exclusive, as of the route
      from = largest(begin, minus(from, size));
      const part = [];
      let page = { next_index: from, has_more: true };
      while (page.has_more && page.next_index < until) {
        page = await get({ from_index: page.next_index, until_index: until, limit: size });
        if (!current()) return;
        part.push(...page.records);
      }
      found = [...part, ...found];
      records = found.slice(-PAGE);
      show(`searched back to index ${count(from)}`);
    }
    records = found.slice(-PAGE);
    next = stop;
    first = found.length > PAGE ? records[0].index : from;
    atEnds(begin, next >= edge.next_index);
    const notes = [first <= begin && "beginning of the log", next >= edge.next_index && "end of the log"];
    show(notes.filter(Boolean).join(", "));
  });

  // A page that a person chooses ends the live tail.
  function choose(show) {
    tail.checked = false;
    tails += 1;
    return show();
  }

  const open = () => choose(async () => {
    newestFirst = start.value === "last";
    if (start.value === "earliest") await read({ from: "earliest" });
    else if (start.value === "index") await read({ from_index: at.value || 0 });
    else if (start.value === "time") await read({ from_timestamp: new Date(at.value).getTime() || 0 });
    else await before();
  });

  function show(note) {
    const reversed = tail.checked || newestFirst;
    const rows = reversed ? [...records].reverse() : records;
    update(list, table(
      [
        ["Index", (record) => count(record.index), "number"],
        ["Time", (record) => time(record.timestamp)],
        ["Key", keyCell, "key"],
        ["Value", valueCell, "value"],
      ],
      rows,
      {
        caption: `${tail.checked ? "Live, " : ""}${reversed ? "newest first" : "by index"}, without control records${consistency.consistency ? "; this node may lack the newest" : ""}`,
        empty: "No record here",
        key: (record) => record.index,
        fixed: true,
        stacks: true,
      },
    ));
    const held = records.length ? `records ${indexes(records[0].index, records[records.length - 1].index)}` : "no records";
    status.textContent = note ? `${held}, ${note}` : held;
  }

  async function follow() {
    tails += 1;
    const mine = tails;
    if (!tail.checked) { show(""); return; }
    await before();
    while (tails === mine) {
      try {
        const query = new URLSearchParams({ from_index: next ?? 0, limit: 200, wait_ms: 5000, ...filters() });
        const page = await call(`${path}?${query}`, { timeoutMs: 15_000 });
        if (tails !== mine) return;
        next = page.next_index;
        if (page.records.length) {
          const held = [...records, ...page.records];
          records = held.slice(-TAIL_KEPT);
          if (held.length > records.length) first = records[0].index;
          atEnds(page.begin_index, !page.has_more);
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
        h("button", { type: "button", onclick: download, title: "From the first record of this page on, as NDJSON" }, "Download"),
        h("button", { type: "button", onclick: () => produce(log).then((done) => done && !tail.checked && open()) }, "Append"),
      ),
      list,
      h("div", { class: "bar" }, status, h("span", { style: "margin-left:auto" }), earlier, later),
    ),
    close: () => { tails += 1; calls += 1; },
    async refresh({ logs }) {
      if (next !== null && logs.find((each) => each.name === log)?.committed_index >= next) later.ariaDisabled = false;
    },
  };
}

// Characters that change the direction of a text are shown by their codes: they would hide what it is.
const shortened = (text) => (text.length > SHOWN ? `${text.slice(0, SHOWN)}…` : text)
  .replace(/[\u202a-\u202e\u2066-\u2069]/g, (found) => `\\u${found.charCodeAt(0).toString(16)}`);

export function keyCell(record) {
  if (record.key_base64) return h("span", {}, shortened(record.key_base64), " ", badge("base64"));
  return record.key == null ? "–" : shortened(record.key);
}

export function valueCell(record) {
  if (record.value === null || (record.value === undefined && record.value_base64 === undefined && record.value_json === undefined)) {
    return badge("tombstone", "warn");
  }
  const text = record.value ?? record.value_base64;
  const key = record.key ?? record.key_base64 ?? "";
  const summary = h("summary", {}, shortened(text) || h("span", { class: "soft" }, "empty"), record.value === undefined ? h("span", {}, " ", badge("base64")) : "");
  const whole = h("details", {}, summary);
  whole.addEventListener("toggle", () => {
    if (!whole.open || whole.childElementCount > 1) return;
    whole.append(
      ...(key.length > SHOWN ? [h("p", { class: "soft" }, "Key"), h("pre", {}, key), h("p", { class: "soft" }, "Value")] : []),
      h("pre", {}, pretty(text)),
      record.headers?.length ? table([["Header", (pair) => pair[0]], ["Value", (pair) => (typeof pair[1] === "object" ? JSON.stringify(pair[1]) : pair[1])]], record.headers) : "",
      h("p", { class: "soft" }, `term ${record.term}, offset ${count(record.offset)}, ${record.type}`),
    );
  });
  return whole;
}

// JSON with a line for each value; other text as it is. Only spaces change: a number that JavaScript cannot hold
// (1e999, 12345678901234567890) and a name that occurs twice stay as they are stored.
export function pretty(text) {
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  let depth = 0;
  let before = "";
  const line = () => `\n${"  ".repeat(depth)}`;
  return text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g).map((token) => {
    const opened = before === "{" || before === "[";
    const closes = token === "}" || token === "]";
    if (closes) depth -= 1;
    const space = before === "," || opened !== closes && (opened || closes) ? line() : before === ":" ? " " : "";
    if (token === "{" || token === "[") depth += 1;
    before = token;
    return space + token;
  }).join("");
}

async function produce(log) {
  const key = h("input", { autocomplete: "off" });
  const value = h("textarea", { rows: "6" });
  const headers = h("textarea", { rows: "2", placeholder: "name: value, one a line" });
  let sent = null; // the same record again is stored once
  return ask({
    title: `Append a record to ${log}`,
    fields: [["key", "Key (empty: none)", key], ["value", "Value", value], ["headers", "Headers", headers]],
    confirm: "Append",
    act: async (given) => {
      const body = recordOf(given);
      const text = JSON.stringify(body);
      if (sent?.text !== text) sent = { text, key: newKey() };
      try {
        const done = await call(`${pathOf(log)}/records`, { method: "POST", body, headers: { "idempotency-key": sent.key } });
        toast(`Committed at index ${count(done.first_index)}, term ${done.term}`);
      } catch (error) {
        throw new Error(`${error.message} (${error.document?.outcome ?? "outcome unknown"})`);
      }
      return true;
    },
  });
}

// Raises Error for a line of the headers without a colon.
function recordOf({ key, value, headers }) {
  const record = { value };
  if (key) record.key = key;
  const lines = headers.split("\n").filter((line) => line.trim());
  const wrong = lines.find((line) => !line.includes(":"));
  if (wrong !== undefined) throw new Error(`A header is a line "name: value", got "${wrong}"`);
  if (lines.length) record.headers = lines.map((line) => [line.slice(0, line.indexOf(":")).trim(), line.slice(line.indexOf(":") + 1).trim()]);
  return record;
}

const newKey = () => [...crypto.getRandomValues(new Uint32Array(4))].join("-");
