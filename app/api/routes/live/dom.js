// Elements, texts, tables, dialogs: what every view is made of. Texts never become markup.

const whole = new Intl.NumberFormat("en");
export const COLORS = ["#2f6fd0", "#1f9d57", "#d07a16", "#9a4fc9", "#1899a8", "#cf3a33", "#7a8f28", "#cc4f90"];

export const byId = (id) => document.getElementById(id);

export function h(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "style") made.style.cssText = value;
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

// The first and the last index of a range, inclusive; the last one is -1 when there is none.
export function indexes(first, last) {
  if (last === null || last === undefined) return "–";
  return last < 0 ? "none" : `${count(first > 0 ? first : 0)} to ${count(last)}`;
}

// Arithmetic of indexes: numbers, or BigInts where a number would be rounded.
const exact = (whole) => (Number.isSafeInteger(Number(whole)) ? Number(whole) : whole);
export const plus = (index, added) => exact(BigInt(index) + BigInt(added));
export const minus = (index, other) => exact(BigInt(index) - BigInt(other));
export const largest = (...indexes) => indexes.reduce((found, each) => (each > found ? each : found));

export const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));

export function bytes(held) {
  if (held === null || held === undefined) return "–";
  let size = Number(held);
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (size >= 1024 && place < units.length - 1) { size /= 1024; place += 1; }
  return `${size.toFixed(place && size < 100 ? 1 : 0)} ${units[place]}`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${count(Math.round(ms))} ms`;
  if (ms < 120_000) return `${(ms / 1000).toFixed(1)} s`;
  return ms < 7_200_000 ? `${count(Math.round(ms / 60_000))} min` : `${count(Math.round(ms / 3_600_000))} h`;
}

const pad = (value, digits = 2) => String(value).padStart(digits, "0");

export function clock(ms) {
  const at = new Date(ms);
  return `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

export function time(ms) {
  const at = new Date(ms);
  const exact = `${clock(ms)}.${pad(at.getMilliseconds(), 3)}`;
  const today = new Date().toDateString() === at.toDateString();
  return today ? exact : `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${exact}`;
}

// The colour of a node depends on its id alone, so it stays when other nodes join or leave.
export function colorOf(node) {
  const digits = /(\d+)$/.exec(node || "");
  let place = 0;
  if (digits) place = Number(digits[1]) - 1;
  else for (const letter of node || "") place = (place * 31 + letter.charCodeAt(0)) % 8191;
  return COLORS[((place % COLORS.length) + COLORS.length) % COLORS.length];
}

export const swatch = (node) => h("span", { class: "swatch", style: `background:${colorOf(node)}`, "aria-hidden": "true" });

export function named(node) {
  return node ? h("span", {}, swatch(node), node) : "none";
}

export function badge(text, kind = "") {
  return h("span", { class: `badge ${kind}` }, text);
}

export function roleBadge(role) {
  const kind = { leader: "good", master: "good", candidate: "warn", "no status": "bad", removed: "warn" }[role] || "";
  return badge(role, kind);
}

// Shows `fresh` as the content of `holder`. Elements that are there already stay, with the focus, the selection
// and the scroll position. A row with a key stays with its key, so that its buttons act on what it shows.
export function update(holder, ...fresh) {
  const wanted = new Set(fresh.map((child) => child.dataset?.key).filter(Boolean));
  const keyed = new Map();
  for (const child of [...holder.children].filter((each) => each.dataset.key)) {
    if (wanted.has(child.dataset.key)) keyed.set(child.dataset.key, child);
    else child.remove(); // first, or the others would have to move, and a moved element loses the focus
  }
  fresh.forEach((child, place) => {
    const there = holder.childNodes[place] ?? null;
    const same = child.dataset?.key ? keyed.get(child.dataset.key) : there;
    if (!same || same.nodeName !== child.nodeName || same.dataset?.key !== child.dataset?.key) holder.insertBefore(child, there);
    else {
      if (same !== there) holder.insertBefore(same, there);
      patch(same, child);
    }
  });
  while (holder.childNodes.length > fresh.length) holder.lastChild.remove();
}

function patch(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.hasAttribute("data-fixed")) return;
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  update(old, ...fresh.childNodes);
}

// columns: [title, cell(row), class?]. key(row): what identifies a row; fixed: a row with a key never changes; stacks: on
// a narrow screen the long value of a row is below its other cells, each with its title.
export function table(columns, rows, { caption, empty = "Nothing yet", key, fixed = false, stacks = false } = {}) {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  const head = h("tr", {}, columns.map(([title, , kind]) => h("th", { scope: "col", class: kind }, title)));
  const body = rows.map((row) => h("tr", { "data-key": key?.(row), "data-fixed": fixed }, columns.map(([title, cell, kind]) => h("td", { class: kind, "data-title": stacks ? title : null }, cell(row)))));
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption || columns[0][0] },
    h("table", { class: stacks ? "stacks" : null }, caption && h("caption", {}, caption), h("thead", {}, head), h("tbody", {}, body)),
  );
}

export function figure(value, text) {
  return h("div", {}, h("b", {}, value), h("span", {}, text));
}

export function field(text, input) {
  return h("label", {}, text, input);
}

export function toast(text, bad = false) {
  const made = h("div", { class: `toast ${bad ? "bad" : ""}` }, text);
  byId("toasts").append(made);
  setTimeout(() => made.remove(), bad ? 12_000 : 5_000);
}

// A form in a dialog. fields: [name, text, input]. act({name: value}) carries it out; while it fails, the dialog
// stays as it was filled in and shows the reason. Resolves to the result of act, or to null when it is left. A
// dialog that is open stays below, as it was filled in.
export function ask({ title, text, fields = [], confirm = "OK", danger = false, match, act = (given) => given }) {
  const below = byId("dialog").open;
  const dialog = below ? document.body.appendChild(h("dialog")) : byId("dialog");
  const titleId = below ? "dialog-title-above" : "dialog-title";
  return new Promise((resolve) => {
    let result = null;
    const submit = h("button", { type: "submit", class: danger ? "danger" : "primary", disabled: Boolean(match) }, confirm);
    const refusal = h("p", { role: "alert", class: "refusal" });

    async function carryOut(event) {
      event.preventDefault();
      const focused = document.activeElement; // a disabled button loses it
      refusal.textContent = "";
      submit.disabled = true;
      try {
        result = await act(Object.fromEntries(fields.map(([name, , input]) => [name, input.value])));
        if (form.isConnected) dialog.close();
      } catch (error) {
        if (!dialog.open || !form.isConnected) toast(error.message, true);
        refusal.textContent = error.message;
      }
      submit.disabled = false;
      focused.focus();
    }

    const form = h(
      "form",
      { onsubmit: carryOut },
      h("h2", { id: titleId }, title),
      text && h("p", {}, text),
      fields.map(([, label, input]) => field(label, input)),
      match && field(`Type ${match} to confirm`, h("input", {
        autocomplete: "off",
        oninput: (event) => { submit.disabled = event.target.value !== match; },
      })),
      refusal,
      h("div", { class: "actions" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), submit),
    );
    dialog.setAttribute("aria-labelledby", titleId);
    dialog.replaceChildren(form);
    dialog.addEventListener("close", () => {
      if (below) dialog.remove();
      resolve(result);
    }, { once: true });
    dialog.showModal();
  });
}

export function save(name, blob) {
  const url = URL.createObjectURL(blob);
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
