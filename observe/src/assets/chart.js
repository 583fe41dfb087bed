// The clock's bounds over time: a band around the estimate, and below it when it was not synchronized.

import { span } from "./format.js";

const SYNCHRONIZED = 2;
const UNRELIABLE = 4;

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** HH:MM:SS */
const utc = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);

export class Chart {
  constructor(element) {
    this.element = element;
    this.seconds = 600;
    this.empty();
    const redo = () => this.make();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redo);
    new ResizeObserver(() => this.resize()).observe(element);
    this.make();
  }

  empty() {
    // x in s, above, -below, sigma, -sigma
    this.data = [[], [], [], [], []];
    this.status = [];
  }

  size() {
    const narrow = this.element.clientWidth < 480;
    return { width: Math.max(this.element.clientWidth, 200), height: narrow ? 200 : 260 };
  }

  resize() {
    const size = this.size();
    if (size.width !== this.plot.width || size.height !== this.plot.height) this.plot.setSize(size);
  }

  make() {
    this.plot?.destroy();
    const [band, edge, grid, text, sigma] =
      ["--band", "--accent", "--line", "--muted", "--sigma"].map(style);
    const font = "12px system-ui, sans-serif";
    const axis = { stroke: text, font, ticks: { stroke: grid, width: 1, size: 4 }, grid: { stroke: grid, width: 1 } };
    const line = (stroke, extra = {}) => ({ stroke, width: 1.5, points: { show: false }, ...extra });
    const options = {
      ...this.size(),
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { size: 6 } },
      // Not the span of what is there, so that a short history does not look like a long one.
      scales: { x: { time: true, range: () => this.window() }, y: { range: (_, low, high) => this.range(low, high) } },
      bands: [{ series: [1, 2], fill: band }],
      series: [
        {},
        line(edge), line(edge),
        line(sigma, { dash: [4, 4], width: 1 }), line(sigma, { dash: [4, 4], width: 1 }),
      ],
      axes: [
        { ...axis, space: 80, values: (_, ticks) => ticks.map((it) => utc(it).slice(0, this.seconds > 600 ? 5 : 8)) },
        { ...axis, size: 74, values: (_, ticks) => ticks.map((it) => (it === 0 ? "0" : `${it < 0 ? "−" : "+"}${span(Math.abs(it))}`)) },
      ],
      hooks: { draw: [(plot) => this.strip(plot)], setCursor: [(plot) => this.tell(plot)] },
    };
    this.plot = new uPlot(options, this.data, this.element);
  }

  window() {
    const last = this.data[0].at(-1) ?? Date.now() / 1000;
    return [last - this.seconds, last];
  }

  range(low, high) {
    const most = Math.max(Math.abs(low ?? 0), Math.abs(high ?? 0), 1);
    return [-most * 1.15, most * 1.15];
  }

  /** A ribbon at the bottom where the clock was not synchronized. */
  strip(plot) {
    const { left, top, width, height } = plot.bbox;
    const context = plot.ctx;
    const thick = 6 * devicePixelRatio;
    const [warn, bad] = ["--warn", "--bad"].map(style);
    const xs = this.data[0];
    context.save();
    for (let at = 0; at < xs.length; at++) {
      const status = this.status[at];
      if (status === SYNCHRONIZED) continue;
      const from = Math.max(plot.valToPos(xs[at], "x", true), left);
      const to = at + 1 < xs.length ? plot.valToPos(xs[at + 1], "x", true) : left + width;
      context.fillStyle = status === null || status === UNRELIABLE ? bad : warn;
      context.fillRect(from, top + height - thick, Math.max(to - from, 1), thick);
    }
    context.restore();
  }

  tell(plot) {
    const at = plot.cursor.idx;
    const [xs, above, below] = this.data;
    const known = at !== null && at !== undefined && above[at] !== null && above[at] !== undefined;
    this.element.title = known
      ? `${utc(xs[at])} UTC  −${span(-below[at])} +${span(above[at])}`
      : "";
  }

  async show(seconds) {
    this.seconds = seconds;
    const answer = await fetch(`/history?seconds=${seconds}`);
    if (!answer.ok) return;
    const columns = await answer.json();
    if (this.seconds !== seconds) return;
    const minus = (values) => values.map((it) => (it === null ? null : -it));
    this.data = [
      columns.at_ms.map((it) => it / 1000),
      columns.above_ns,
      minus(columns.below_ns),
      columns.estimated_error_ns,
      minus(columns.estimated_error_ns),
    ];
    this.status = columns.status;
    this.draw();
  }

  /** Adds a second. Long spans are fetched again now and then instead: a second is no pixel there. */
  add(clock) {
    if (this.seconds > 3600) return;
    const { below_ns: below = null, above_ns: above = null, estimated_error_ns: sigma = null } = clock;
    const row = [
      clock.at_ms / 1000, above, below === null ? null : -below, sigma, sigma === null ? null : -sigma,
    ];
    row.forEach((value, at) => this.data[at].push(value));
    const names = ["unknown", "initializing", "synchronized", "freerunning", "unreliable"];
    const place = names.indexOf(clock.status);
    this.status.push(place < 0 ? null : place);
    const since = clock.at_ms / 1000 - this.seconds;
    while (this.data[0].length > 0 && this.data[0][0] < since) {
      this.data.forEach((column) => column.shift());
      this.status.shift();
    }
    this.draw();
  }

  draw() {
    if (!document.hidden) this.plot.setData(this.data);
  }
}
