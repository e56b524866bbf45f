// Moving lines (uPlot) and the strip of epochs.

import { clock, colorOf, minus, time } from "./dom.js";

const KEPT = 300; // points: five minutes
const SHOWN_S = 60; // at least
const GAP_S = 5; // without a point: the line is interrupted
const STEPS = Array.from({ length: 16 }, (_, place) => [1, 2, 5].map((step) => step * 10 ** place)).flat(); // of an axis: its labels are whole numbers

// Values by name over time. `add` takes {name: value}; names may come and go.
export class Series {
  constructor() {
    this.times = [];
    this.values = new Map();
  }

  add(atMs, values) {
    for (const name of Object.keys(values)) {
      if (!this.values.has(name)) this.values.set(name, this.times.map(() => null));
    }
    const last = this.times[this.times.length - 1];
    if (atMs / 1000 - last > GAP_S) this.push(last + 1, {});
    this.push(atMs / 1000, values);
  }

  push(at, values) {
    this.times.push(at);
    if (this.times.length > KEPT) this.times.shift();
    for (const [name, list] of this.values) {
      list.push(values[name] ?? null);
      if (list.length > KEPT) list.shift();
      if (!(name in values) && list.every((value) => value === null)) this.values.delete(name);
    }
  }

  // The names with the largest sums, in the order of their names.
  largest(most) {
    const sum = (name) => this.values.get(name).reduce((total, value) => total + (value ?? 0), 0);
    const sums = new Map([...this.values.keys()].map((name) => [name, sum(name)]));
    return [...sums.keys()].sort((one, other) => sums.get(other) - sums.get(one)).slice(0, most).sort();
  }
}

export class LineChart {
  constructor({ format, label, colors = colorOf }) {
    this.element = document.createElement("div");
    this.element.className = "chart";
    this.element.setAttribute("role", "img");
    this.element.setAttribute("aria-label", label);
    this.element.textContent = "Waiting for a second sample…";
    this.format = format;
    this.colors = colors;
    this.names = "";
    this.plot = null;
    this.observer = new ResizeObserver(() => this.plot && this.plot.setSize(this.size()));
    this.observer.observe(this.element);
  }

  size() {
    return { width: Math.max(240, this.element.clientWidth), height: 210 };
  }

  show(series, names = [...series.values.keys()]) {
    if (series.times.length < 2) return; // uPlot has no range for one point
    const data = [series.times, ...names.map((name) => series.values.get(name))];
    if (this.plot && names.join() === this.names) this.plot.setData(data);
    else this.draw(names, data);
    if (!(this.plot.cursor.left >= 0)) this.plot.setLegend({ idx: series.times.length - 1 }); // no pointer: the newest values
  }

  draw(names, data) {
    if (this.plot) this.plot.destroy();
    else this.element.textContent = "";
    this.names = names.join();
    const ink = () => getComputedStyle(document.body).getPropertyValue("color"); // changes with the scheme of the system
    const axis = { stroke: ink, grid: { stroke: "rgba(128,140,155,.25)" } };
    this.plot = new uPlot(
      {
        ...this.size(),
        scales: { x: { range: (_, low, high) => [Math.min(low, high - SHOWN_S), high] }, y: { range: (_, low, high) => [0, Math.max(5, high) * 1.1] } },
        axes: [{ ...axis, space: 80, values: (_, ticks) => ticks.map((at) => clock(at * 1000)) }, { ...axis, size: 70, incrs: STEPS, values: (_, ticks) => ticks.map(this.format) }],
        series: [
          { value: (_, at) => (at === null ? "–" : time(at * 1000)) },
          ...names.map((name) => ({
            label: name,
            stroke: this.colors(name),
            width: 2,
            points: { show: false },
            value: (_, value) => (value === null ? "–" : this.format(value)),
          })),
        ],
      },
      data,
      this.element,
    );
  }

  close() {
    this.observer.disconnect();
    if (this.plot) this.plot.destroy();
  }
}

// Each epoch as a stretch of the log in its leader's colour; any number of epochs fits.
export function drawEpochs(canvas, epochs, endIndex) {
  const scale = devicePixelRatio || 1;
  canvas.width = Math.max(1, canvas.clientWidth * scale);
  canvas.height = Math.max(1, canvas.clientHeight * scale);
  const context = canvas.getContext("2d");
  if (!epochs.length) return;
  const begin = epochs[0].start_index;
  const at = (index) => Number(minus(index, begin));
  const span = Math.max(1, at(endIndex));
  epochs.forEach((epoch, place) => {
    const end = place + 1 < epochs.length ? epochs[place + 1].start_index : endIndex;
    const left = (canvas.width * at(epoch.start_index)) / span;
    const width = Math.max(1, (canvas.width * (at(end) - at(epoch.start_index))) / span);
    context.fillStyle = colorOf(epoch.leader);
    context.fillRect(left, 0, width, canvas.height);
    if (width > 3) {
      context.fillStyle = "rgba(255,255,255,.55)";
      context.fillRect(left, 0, 1, canvas.height);
    }
  });
}

// The quantile of what was counted between two histograms, in seconds; null when nothing was, or a node is missing.
export function quantile(bounds, before, after, share) {
  const counts = after.map((value, place) => value - (before ? before[place] : 0));
  const total = counts.reduce((sum, value) => sum + value, 0);
  if (total <= 0 || counts.some((value) => value < 0)) return null;
  let seen = 0;
  for (let place = 0; place < counts.length; place += 1) {
    if (seen + counts[place] >= share * total) {
      const low = place ? bounds[place - 1] : 0;
      const high = place < bounds.length ? bounds[place] : bounds[bounds.length - 1];
      return low + ((high - low) * (share * total - seen)) / counts[place];
    }
    seen += counts[place];
  }
  return bounds[bounds.length - 1];
}
