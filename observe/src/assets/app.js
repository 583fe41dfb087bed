// Gets news from timevisor-observe and shows them. There is nothing to press that changes the host.

import { Chart } from "./chart.js";
import { ago, h, signed, span, tone } from "./format.js";
import * as panels from "./panels.js";

const element = (id) => document.getElementById(id);
const chart = new Chart(element("chart"));
let clock = null;
let clockAt = 0;
let daemon = null;
let references = null;
let lostAt = null;

function showClock() {
  const status = clock.status ?? "no page";
  element("status").textContent = status;
  element("status").className = `pill large ${tone(status)}`;
  const known = clock.below_ns !== undefined && clock.below_ns !== null;
  const half = known ? Math.max(clock.below_ns, clock.above_ns) : null;
  element("bound").textContent = known ? `±${span(half)}` : "unknown";
  const say = clock.problem ?? daemon?.reason;
  element("reason").textContent = say ?? (status === "unreliable"
    ? "An assumption was contradicted: do not rely on the bounds."
    : "True time is this close to the estimate.");
  const facts = [
    ["earliest", known ? signed(-clock.below_ns) : "unknown"],
    ["latest", known ? signed(clock.above_ns) : "unknown"],
    ["one sigma", span(clock.estimated_error_ns)],
    ["follows", daemon?.reference ?? "nobody"],
    ["stratum", daemon?.stratum ?? "none"],
    ["counter", daemon?.counter ? `${daemon.counter} ${daemon.counter_mhz}\u202fMHz` : "unknown"],
    ["contradictions", daemon?.contradictions ?? "unknown"],
  ];
  element("facts").replaceChildren(...facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", { class: "mono" }, String(value))]));
  document.title = known ? `±${span(half)} ${status} · Timevisor` : `${status} · Timevisor`;
}

/** The seconds of UTC as the host knows them, one network's way late. */
function tick() {
  const known = clock?.tai_us && clock.tai_offset_s !== null;
  if (known) {
    const ms = clock.tai_us / 1000 - clock.tai_offset_s * 1000 + (performance.now() - clockAt);
    const [date, time] = new Date(ms).toISOString().split("T");
    element("time").textContent = time.slice(0, 8);
    element("date").textContent = `${date} UTC`;
  } else {
    element("time").textContent = "--:--:--";
  }
  showBanner();
}

function showBanner() {
  const banner = element("banner");
  const lines = [];
  if (lostAt) {
    lines.push(["bad", `This page has lost timevisor-observe since ${clockTime(lostAt)} (${ago((Date.now() - lostAt) / 1000)}). It tries again.`]);
  } else if (daemon?.problem) {
    const away = (clock.at_ms - daemon.since_ms) / 1000;
    lines.push(["bad", `timevisord has not answered since ${clockTime(daemon.since_ms)} (${ago(Math.max(away, 0))}). ${daemon.problem}. `
      + (clock?.status ? "The clock runs on: its bounds hold, and grow." : "")]);
  }
  for (const key of ["counter_problem", "oscillator_problem", "leap_problem", "leap_warning"]) {
    if (!lostAt && daemon?.[key]) lines.push(["warn", daemon[key]]);
  }
  for (const refused of daemon?.refused ?? []) lines.push(["warn", refused]);
  const text = lines.map(([, it]) => it).join("\n");
  if (banner.dataset.text === text) return;
  banner.dataset.text = text;
  banner.hidden = lines.length === 0;
  banner.replaceChildren(...lines.map(([kind, it]) => h("p", { class: kind }, it)));
  document.body.classList.toggle("stale", Boolean(lostAt || daemon?.problem));
}

/** A moment of today as a time, another one with its date; UTC, as everything here. */
function clockTime(ms) {
  const [date, time] = new Date(ms).toISOString().split("T");
  const today = new Date().toISOString().startsWith(date);
  return `${today ? "" : `${date} `}${time.slice(0, 8)} UTC`;
}

const topics = {
  clock(value) {
    clock = value;
    clockAt = performance.now();
    showClock();
    chart.add(value);
    if (references) panels.references(references, clock);
  },
  daemon(value) {
    // What was known of the host stays, greyed, while timevisord is away.
    daemon = value.problem ? { ...daemon, ...value } : value;
    element("host").textContent = daemon.host_id ? daemon.host_id.slice(0, 8) : "";
    element("host").title = daemon.host_id ?? "";
    element("about").textContent = daemon.version ? `timevisord ${daemon.version}, since ${clockTime(daemon.started_ms)}` : "";
    if (clock) showClock();
  },
  references(value) {
    references = value ?? references;
    panels.references(value, clock);
  },
  vms: panels.vms,
  timelines: panels.timelines,
  reservations: panels.reservations,
  clusters: panels.clusters,
  introspections: panels.introspections,
};

function listen() {
  const source = new EventSource("/events");
  for (const [name, take] of Object.entries(topics)) {
    source.addEventListener(name, (event) => take(JSON.parse(event.data)));
  }
  source.addEventListener("open", () => {
    if (lostAt) chart.show(chart.seconds);
    lostAt = null;
  });
  source.addEventListener("error", () => {
    lostAt ??= Date.now();
    // A browser gives up where the server refused; it tries again by itself where the connection broke.
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 5000);
  });
}

for (const button of document.querySelectorAll(".ranges button")) {
  button.addEventListener("click", () => {
    for (const other of document.querySelectorAll(".ranges button")) other.setAttribute("aria-pressed", String(other === button));
    chart.show(Number(button.dataset.seconds));
  });
}
document.addEventListener("visibilitychange", () => { if (!document.hidden) chart.show(chart.seconds); });
setInterval(tick, 250);
setInterval(() => { if (chart.seconds > 3600) chart.show(chart.seconds); }, 60000);
await chart.show(chart.seconds).catch(() => {});
listen();
