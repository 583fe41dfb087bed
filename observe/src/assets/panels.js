// The panels below the clock. Each takes its topic and fills its section; null: timevisord does not
// answer, and what it said before is greyed by the page.

import { h, nice, percent, pill, signed, span, svg, tone } from "./format.js";

function show(id, title, note, ...content) {
  const section = document.getElementById(id);
  section.hidden = false;
  const head = h("div", { class: "bar" }, h("h2", {}, title), h("span", { class: "muted" }, note));
  section.replaceChildren(head, ...content);
}

const hide = (id) => { document.getElementById(id).hidden = true; };

const GLYPHS = { selected: "★", combined: "+", rebuilding: "–", falseticker: "✕", unusable: "?" };
const MARKS = {
  selected: "weighs most in the estimate", combined: "contributes to the estimate",
  rebuilding: "its bounds count, its estimate does not", falseticker: "the others outvote it",
  unusable: "has said nothing that can be used",
};

export function references(rows, clock) {
  if (rows === null) return;
  const known = rows.filter((it) => it.earliest_ns !== null);
  const honest = known.filter((it) => it.mark !== "falseticker");
  const sides = (honest.length ? honest : known).flatMap((it) => [-it.earliest_ns, it.latest_ns]);
  const most = nice(Math.max(...sides, clock?.below_ns ?? 0, clock?.above_ns ?? 0, 1) * 1.05);
  const head = h("div", { class: "reference axis muted" }, h("span"), h("span", { class: "scale" },
    h("span", {}, `−${span(most)}`), h("span", {}, "this host"), h("span", {}, `+${span(most)}`)), h("span"));
  const list = rows.map((it) => reference(it, most, clock));
  const used = rows.filter((it) => it.mark === "selected" || it.mark === "combined").length;
  show("references", "References", `${used} of ${rows.length} used`, head, ...list);
}

function reference(it, most, clock) {
  const detail = [it.kind, it.stratum === null ? null : `stratum ${it.stratum}`,
    it.delay_ns === null ? null : `delay ${span(it.delay_ns)}`, `every ${poll(it.poll_s)}`,
    it.authenticated ? "NTS" : null].filter((part) => part !== null).join(" · ");
  const state = it.mark === "falseticker" || it.mark === "unusable";
  return h("div", { class: "reference" },
    h("div", { class: "who" },
      h("span", { class: `mark ${it.mark}`, title: MARKS[it.mark] ?? it.mark }, GLYPHS[it.mark] ?? "?"),
      h("div", {}, h("strong", {}, it.name), h("div", { class: "muted small" }, detail))),
    interval(it, most, clock),
    h("div", { class: "figures mono" },
      h("span", {}, it.offset_ns === null ? "no answer" : signed(it.offset_ns)),
      h("span", { class: "muted small" }, reach(it.reach))),
    state ? h("p", { class: "small detail bad" }, `${it.state}: ${it.detail}`) : null);
}

const poll = (seconds) => (seconds < 60 ? `${seconds}\u202fs` : `${Math.round(seconds / 60)}\u202fmin`);

/** Octal, the newest answer in the last bit: dots, the newest at the right. */
function reach(octal) {
  const bits = parseInt(octal, 8);
  if (Number.isNaN(bits)) return "";
  const dots = [7, 6, 5, 4, 3, 2, 1, 0].map((bit) => h("i", { class: bits & (1 << bit) ? "on" : "off" }));
  return h("span", { class: "reach", title: "the last eight requests" }, ...dots);
}

/** What the reference says the time is, around our estimate; our own bounds behind it. */
function interval(it, most, clock) {
  const x = (ns) => 500 + (Math.max(-most, Math.min(most, ns)) / most) * 490;
  const parts = [];
  if (clock?.below_ns !== undefined && clock.below_ns !== null) {
    const from = x(-clock.below_ns);
    parts.push(svg("rect", { x: from, y: 0, width: Math.max(x(clock.above_ns) - from, 2), height: 40, class: "own" }));
  }
  parts.push(svg("line", { x1: 500, x2: 500, y1: 0, y2: 40, class: "zero" }));
  let label = "no answer yet";
  if (it.earliest_ns !== null) {
    const [from, to] = [x(it.earliest_ns), x(it.latest_ns)];
    parts.push(svg("rect", { x: from, y: 15, width: Math.max(to - from, 3), height: 10, rx: 2, class: `span ${it.mark}` }));
    parts.push(svg("rect", { x: x(it.offset_ns) - 2, y: 10, width: 4, height: 20, class: `point ${it.mark}` }));
    label = `${signed(it.earliest_ns)} to ${signed(it.latest_ns)}`;
  }
  return svg("svg", { viewBox: "0 0 1000 40", preserveAspectRatio: "none", class: "interval", role: "img", "aria-label": label },
    svg("title", {}, label), ...parts);
}

let wanted = "";

export function vms(topic) {
  if (topic === null) return;
  const { served, not_served: strangers } = topic;
  const counts = new Map();
  for (const it of served) {
    const word = ["synchronized", "freerunning", "initializing", "unreliable", "unknown"].includes(it.status) ? it.status : "no page";
    counts.set(word, (counts.get(word) ?? 0) + 1);
  }
  const chips = [...counts].map(([word, count]) => h("span", { class: `pill ${tone(word)}` }, `${count} ${word}`));
  const rank = { bad: 0, warn: 1, good: 2 };
  const sorted = [...served].sort((a, b) => rank[tone(a.status)] - rank[tone(b.status)] || a.name.localeCompare(b.name, undefined, { numeric: true }));
  const body = h("tbody");
  const list = () => body.replaceChildren(...sorted.filter((it) => it.name.toLowerCase().includes(wanted)).map(vm));
  const head = h("thead", {}, h("tr", {}, ...["VM", "Status", "Delivery", "Counter"].map((it) => h("th", {}, it))));
  let search = null;
  if (served.length > 8) {
    search = h("input", { type: "search", placeholder: "Find a VM", "aria-label": "Find a VM" });
    search.value = wanted;
    search.addEventListener("input", () => { wanted = search.value.toLowerCase(); list(); });
  }
  list();
  // A search that is being typed stays where it is.
  const typing = document.activeElement?.matches?.("#vms input");
  const scrolled = document.querySelector("#vms .scroll")?.scrollTop ?? 0;
  const table = served.length
    ? h("div", { class: "scroll", tabindex: "0" }, h("table", {}, head, body))
    : h("p", { class: "muted" }, "No VMs are served.");
  const others = strangers.map((it) => h("p", { class: "small detail warn" }, it));
  show("vms", "Virtual machines", `${served.length} served`, h("div", { class: "chips" }, ...chips, search), table, ...others);
  const scroll = document.querySelector("#vms .scroll");
  if (scroll) scroll.scrollTop = scrolled;
  if (typing && search) { search.focus(); search.setSelectionRange(search.value.length, search.value.length); }
}

function vm(it) {
  const more = [it.reason, it.migration, it.notice && it.notice !== "none" ? `disruption ${it.notice}` : null].filter(Boolean).join(" · ");
  return h("tr", {},
    h("td", {}, h("strong", {}, it.name), h("div", { class: "muted small" }, more || `pid ${it.pid}, ${it.timescale}`)),
    h("td", {}, pill(it.status)),
    h("td", {}, `${it.delivery}`, h("div", { class: "muted small" }, it.accelerator)),
    h("td", { class: "small muted" }, it.mapping));
}

export function timelines(rows) {
  if (rows === null) return;
  const list = rows.map((it) => {
    const half = it.below_ns === null ? null : Math.max(it.below_ns, it.above_ns);
    const need = it.required ? Math.min(it.required.below_ns, it.required.above_ns) : null;
    const met = it.unmet === 0;
    const share = need !== null && half !== null ? half / need : null;
    const text = need === null ? "nothing required" : `±${span(need)} required`;
    return h("div", { class: "meter" },
      h("div", { class: "line" }, h("span", {}, h("strong", {}, it.name), h("span", { class: "muted small" }, ` ${it.tenant ?? it.epoch} · ${it.members} bound`)),
        h("span", { class: "mono" }, half === null ? "unknown" : `±${span(half)}`)),
      need === null ? null : gauge([{ share: Math.min(share ?? 1, 1), kind: met ? "use" : "over" }], null),
      h("div", { class: `small ${met ? "muted" : "bad"}` }, met ? text : `${text}; ${it.unmet} of ${it.members} not met`));
  });
  if (list.length) show("timelines", "Timelines", `${rows.length}`, ...list); else hide("timelines");
}

/** A bar of one processor (or one requirement): what is used, and a mark at what is reserved. */
function gauge(fills, mark) {
  const parts = fills.map((it) => svg("rect", { x: 0, y: 0, width: Math.max(it.share * 1000, 2), height: 10, class: it.kind }));
  if (mark !== null) parts.push(svg("rect", { x: Math.max(mark * 1000 - 3, 0), y: -3, width: 6, height: 16, class: "limit" }));
  return svg("svg", { viewBox: "0 -3 1000 16", preserveAspectRatio: "none", class: "gauge", "aria-hidden": "true" },
    svg("rect", { x: 0, y: 0, width: 1000, height: 10, class: "ground" }), ...parts);
}

export function reservations(rows) {
  if (rows === null) return;
  const list = rows.map((it) => {
    const supply = it.budget_ns / it.period_ns;
    const trouble = [it.problem, it.broken ? `${it.broken} s with less than reserved` : null, it.late ? `${it.late} late jobs` : null].filter(Boolean);
    const where = it.core === null ? it.promise : `${it.promise}, core ${it.core}`;
    return h("div", { class: "meter" },
      h("div", { class: "line" }, h("span", {}, h("strong", {}, it.vm), h("span", { class: "muted small" }, ` vCPU ${it.vcpu} · ${where}`)),
        h("span", { class: "mono" }, `${span(it.budget_ns)} / ${span(it.period_ns)}`)),
      gauge([{ share: Math.min(supply, 1), kind: "supply" }, { share: Math.min(it.used ?? 0, 1), kind: it.used > supply * 1.02 ? "over" : "use" }], Math.min(supply, 1)),
      h("div", { class: "small muted" }, `supply ${percent(supply)} · used ${percent(it.used)}`),
      ...trouble.map((text) => h("p", { class: "small detail bad" }, text)));
  });
  if (list.length) show("reservations", "Reserved processor time", `${rows.length}`, ...list); else hide("reservations");
}

export function clusters(rows) {
  if (rows === null) return;
  const trees = rows.map((it) => {
    const own = { address: "this host", level: it.level, status: it.role, width_ns: it.below_ns === null ? null : it.below_ns + it.above_ns, own: true };
    const hosts = [...it.hosts, own].sort((a, b) => (a.level ?? 99) - (b.level ?? 99) || a.address.localeCompare(b.address, undefined, { numeric: true }));
    const nodes = hosts.map((host) => {
      const line = h("li", { class: host.own ? "own" : host.status },
        h("span", { class: "branch", "aria-hidden": "true" }, host.level ? "└" : "●"),
        h("strong", {}, host.address), h("span", { class: "muted small" }, host.status + (host.reason ? `: ${host.reason}` : "")),
        h("span", { class: "mono small" }, host.width_ns === null ? "" : `${span(host.width_ns)} wide`));
      line.style.setProperty("--level", Math.min(host.level ?? 0, 8));
      return line;
    });
    return h("div", { class: "tree" }, h("h3", {}, `${it.cluster} `, h("span", { class: "muted" }, it.timeline)), h("ul", {}, ...nodes));
  });
  if (trees.length) show("clusters", "Clusters", `${rows.length}`, ...trees); else hide("clusters");
}

export function introspections(rows) {
  if (rows === null) return;
  const list = rows.map((it) => h("div", { class: "meter" },
    h("div", { class: "line" }, h("span", {}, h("strong", {}, it.vm), h("span", { class: "muted small" }, ` ${it.guest ?? "guest unknown"} · ${it.backend}`)), pill(it.state)),
    h("div", { class: "small muted" }, `${it.tasks} tasks${it.dropped ? `, ${it.dropped} events lost` : ""}`),
    it.problem ? h("p", { class: "small detail bad" }, it.problem) : null));
  if (list.length) show("introspections", "Introspection", `${rows.length}`, ...list); else hide("introspections");
}
