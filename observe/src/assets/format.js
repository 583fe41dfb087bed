// Numbers and elements. Text from timevisord is only ever set as text, never as markup.

const UNITS = [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]];

/** A span in a unit that fits, with three digits: 12500 is "12.5 µs". */
export function span(ns) {
  if (ns === null || ns === undefined) return "unknown";
  const size = Math.abs(ns);
  const [name, unit] = UNITS.find(([, it]) => size >= it) ?? UNITS[3];
  const value = ns / unit;
  const digits = unit === 1 ? 0 : Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return `${value.toFixed(digits)}\u202f${name}`;
}

/** The same with its sign. */
export function signed(ns) {
  if (ns === null || ns === undefined) return "unknown";
  const sign = ns < 0 ? "−" : "+";
  return sign + span(Math.abs(ns));
}

/** A duration for people: "3 min". */
export function ago(seconds) {
  if (seconds < 1) return "less than a second";
  if (seconds < 90) return plural(seconds, "second");
  if (seconds < 5400) return plural(seconds / 60, "minute");
  if (seconds < 172800) return plural(seconds / 3600, "hour");
  return plural(seconds / 86400, "day");
}

function plural(number, word) {
  const whole = Math.round(number);
  return `${whole} ${word}${whole === 1 ? "" : "s"}`;
}

export function percent(share) {
  return share === null || share === undefined ? "unknown" : `${(share * 100).toFixed(1)}\u202f%`;
}

/** An element: h("td", {class: "x"}, "text", child). */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  return fill(element, attributes, children);
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((it) => it !== null && it !== undefined));
  return element;
}

const GOOD = ["synchronized", "attached"];
const WARN = ["initializing", "freerunning", "waiting", "detaching"];

/** A pill that says a status: good, a warning, or bad. */
export function pill(status) {
  return h("span", { class: `pill ${tone(status)}` }, status);
}

export function tone(status) {
  return GOOD.includes(status) ? "good" : WARN.includes(status) ? "warn" : "bad";
}

/** The next 1, 2 or 5 times a power of ten. */
export function nice(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 5, 10].map((it) => it * power).find((it) => it >= value);
}
