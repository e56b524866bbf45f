"use strict";

const INTERVAL_MS = 1000;
const KEPT = 180; // points of the chart
const COLORS = ["#2563c9", "#14804a", "#b25e09", "#8b3fb8", "#0f7f8c", "#b3261e", "#5b6b1f", "#c2417c"];
const byId = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en");
const rates = []; // {at, value}
let chosen = new URLSearchParams(location.search).get("log") || "default";
let last = null; // {at, committed}

function bytes(size) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (size >= 1024 && place < units.length - 1) { size /= 1024; place += 1; }
  return `${size.toFixed(place && size < 100 ? 1 : 0)} ${units[place]}`;
}

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function colorOf(node, nodes) {
  const place = nodes.findIndex((each) => each.id === node);
  return COLORS[(place < 0 ? COLORS.length - 1 : place) % COLORS.length];
}

function showFigures(state) {
  const seen = state.nodes.map((node) => node.status).filter(Boolean);
  const leading = seen.find((status) => ["leader", "master"].includes(status.role));
  const committed = Math.max(-1, ...seen.map((status) => status.committed_index));
  const newest = leading || seen[0];
  byId("leader").textContent = leading ? leading.node : "none";
  byId("leader-label").textContent = leading ? leading.role : "leader";
  byId("term").textContent = newest ? newest.term : "–";
  byId("committed").textContent = number.format(committed);
  byId("size").textContent = newest ? bytes(newest.end_offset) : "–";
  if (last && last.log === state.log && state.now_ms > last.at) {
    const value = Math.max(0, committed - last.committed) / ((state.now_ms - last.at) / 1000);
    rates.push({ at: state.now_ms, value });
    while (rates.length > KEPT) rates.shift();
    byId("rate").textContent = number.format(Math.round(value));
  }
  last = { at: state.now_ms, committed, log: state.log };
}

function showNodes(state) {
  const end = Math.max(1, ...state.nodes.map((node) => (node.status ? node.status.next_index : 0)));
  byId("nodes").replaceChildren(...state.nodes.map((node) => {
    const row = element("div", undefined, "node");
    const status = node.status;
    const role = status ? status.role : "down";
    row.append(element("strong", node.id), element("span", role, `badge ${role}`));
    const bar = element("div", undefined, "bar");
    const held = element("i");
    const committed = element("i");
    held.style.width = `${status ? (100 * status.next_index) / end : 0}%`;
    committed.style.width = `${status ? (100 * (status.committed_index + 1)) / end : 0}%`;
    bar.append(held, committed);
    row.append(bar);
    const behind = status ? end - status.next_index : 0;
    const facts = status
      ? `term ${status.term} · ${number.format(status.begin_index)} to ${number.format(status.end_index)}` +
        (behind ? ` · ${number.format(behind)} behind` : "")
      : "no response";
    row.append(element("span", facts, "facts"));
    return row;
  }));
}

function showChart() {
  const chart = byId("chart");
  const width = chart.clientWidth || 900, height = 180, left = 64, bottom = 22, top = 8;
  const most = Math.max(10, ...rates.map((rate) => rate.value)) * 1.1;
  const x = (place) => left + ((width - left) * (place + KEPT - rates.length)) / (KEPT - 1);
  const y = (value) => top + (height - top - bottom) * (1 - value / most);
  const parts = [];
  for (const share of [0, 0.5, 1]) {
    const at = y((most / 1.1) * share);
    parts.push(`<line x1="${left}" x2="${width}" y1="${at}" y2="${at}"/>`);
    parts.push(`<text x="${left - 8}" y="${at + 4}" text-anchor="end">${number.format(Math.round((most / 1.1) * share))}</text>`);
  }
  for (const seconds of [180, 120, 60, 0]) {
    const at = left + ((width - left) * (180 - seconds)) / 180;
    const anchor = seconds === 0 ? "end" : seconds === 180 ? "start" : "middle";
    parts.push(`<text x="${at}" y="${height - 4}" text-anchor="${anchor}">${seconds ? `${seconds} s${width < 500 ? "" : " ago"}` : "now"}</text>`);
  }
  if (rates.length > 1) {
    const points = rates.map((rate, place) => `${x(place).toFixed(1)},${y(rate.value).toFixed(1)}`).join(" L");
    parts.push(`<path class="area" d="M${x(0)},${y(0)} L${points} L${x(rates.length - 1)},${y(0)} Z"/>`);
    parts.push(`<path class="line" d="M${points}"/>`);
  }
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`); // letters stay as large as they are elsewhere
  chart.innerHTML = parts.join("");
}

function showEpochs(state) {
  const end = Math.max(0, ...state.nodes.map((node) => (node.status ? node.status.next_index : 0)));
  byId("epochs").replaceChildren(...state.epochs.map((epoch) => {
    const records = (epoch.end_index === null ? end : epoch.end_index + 1) - epoch.start_index;
    const box = element("div", `${epoch.epoch} · ${epoch.leader}`);
    box.append(element("span", `from ${number.format(epoch.start_index)}`));
    box.style.flex = `${Math.max(1, records)} 1 0`;
    box.style.background = colorOf(epoch.leader, state.nodes);
    box.title = `epoch ${epoch.epoch}: ${epoch.leader}, ${number.format(records)} records, since ${new Date(epoch.started_ms).toLocaleTimeString()}`;
    return box;
  }));
}

function words(value) {
  if (Array.isArray(value)) return value.join(" ") || "none";
  return typeof value === "object" ? JSON.stringify(value) : value;
}

function showEvents(state) {
  byId("events").replaceChildren(...state.events.map((event) => {
    const row = element("tr", undefined, event.data.refused ? "refused" : event.kind);
    const what = Object.entries(event.data)
      .filter(([name, value]) => value !== null && !["term", "epoch", "started_ms"].includes(name))
      .map(([name, value]) => (name === event.kind ? words(value) : `${name} ${words(value)}`))
      .join(", ");
    const time = new Date(event.timestamp).toLocaleTimeString("en-GB");
    row.append(...[time, event.kind, event.term, what].map((text) => element("td", text)));
    return row;
  }));
}

function showLogs(state) {
  const select = byId("log");
  if (select.options.length !== state.logs.length) {
    select.replaceChildren(...state.logs.map((name) => new Option(name, name, false, name === chosen)));
  }
}

async function look() {
  const pulse = byId("pulse");
  try {
    const answer = await fetch(`/ui/state.json?log=${encodeURIComponent(chosen)}`, { cache: "no-store" });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const state = await answer.json();
    byId("cluster").textContent = state.cluster;
    byId("node").textContent = state.node;
    showLogs(state);
    showFigures(state);
    showNodes(state);
    showChart();
    showEpochs(state);
    showEvents(state);
    pulse.textContent = `live from ${state.node}`;
    pulse.className = "";
  } catch (error) {
    pulse.textContent = `no response (${error.message}), retrying`;
    pulse.className = "lost";
  }
  setTimeout(look, INTERVAL_MS);
}

byId("log").addEventListener("change", (event) => {
  chosen = event.target.value;
  rates.length = 0;
  last = null;
  history.replaceState(null, "", `?log=${encodeURIComponent(chosen)}`);
});
look();
