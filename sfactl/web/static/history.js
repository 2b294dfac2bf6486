// Runs of the past, and what they cost, day by day. The filters are in the address, so that it can be sent.

import { get } from "./api.js";
import { byId, empty, fill, h, put, said, toast } from "./dom.js";
import { count, date, runPath, usd } from "./format.js";
import { Live } from "./live.js";
import { Plot, stacked } from "./plot.js";
import { RunList, heads } from "./rows.js";

const PERIODS = [["24h", "Last 24 hours", 2], ["7d", "Last 7 days", 8], ["14d", "Last 14 days", 15], ["30d", "Last 30 days", 31]];
const STATES = [["", "Any state"], ["completed", "Completed"], ["failed,timeout,lost", "Ended badly"], ["cancelled", "Cancelled"], ["running,paused,queued,starting,stopping,retrying", "Live"]];
const BY = [["name", "name"], ["type", "agent"], ["user", "user"], ["model", "model"], ["label", "label"]];

/** Return the beginnings of the last days, in the reader's zone, and the end of today. */
function days(number) {
  const today = new Date();
  return Array.from({ length: number + 1 }, (_, at) => new Date(today.getFullYear(), today.getMonth(), today.getDate() - number + 1 + at).getTime() / 1000);
}

/** The filters that the list and the chart have in common. */
const FILTERS = ["name", "user", "type", "model", "channel", "label"];

const without = (nodes) => (nodes.length ? ` without node ${nodes.join(", ")}, which does not answer` : "");

export function show() {
  const query = new URLSearchParams(location.search);
  const select = (name, options) => h("select", { name, id: `by-${name}` }, ...options.map(([value, words]) => h("option", { value, selected: (query.get(name) || options[0][0]) === value }, words)));
  const since = select("since", PERIODS);
  if (!query.get("since")) since.value = "7d";
  const status = select("status", STATES);
  const by = select("by", BY);
  const text = (name, hint) => h("input", { name, id: `by-${name}`, placeholder: hint, value: query.get(name) || "", autocomplete: "off" });
  const labelled = (words, input) => h("div", { class: "field" }, h("label", { for: input.id }, words), input);
  const form = h("form", { class: "filters", role: "search", method: "get", action: "/history" },
    labelled("period", since), labelled("state", status), labelled("name", text("name", "any")), labelled("user", text("user", "any")), labelled("type", text("type", "any")), labelled("model", text("model", "claude-opus-*")), labelled("channel", text("channel", "any")), labelled("label", text("label", "key=value")), labelled("by", by));
  const head = h("p", { class: "headline" }, "Loading…");
  const plot = new Plot(220, "cost a day");
  const legend = h("ul", { class: "legend" });
  const table = h("details", {}, h("summary", {}, "As a table"), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Cost a day" }));
  const list = new RunList({ ended: true, order: "newest" });
  const older = h("button", { type: "button", hidden: true }, "Older");
  const nothing = h("div");
  const breaches = h("section", { hidden: true }, h("h2", {}, "Limits exceeded"), h("ul", { class: "plainlist" }));
  const failed = h("section", { hidden: true }, h("h2", {}, "What failed, and why"), h("ul", { class: "plainlist" }));
  const chart = h("section", {}, h("h2", {}, "Cost a day, USD"), plot.place, legend, table);
  fill("History", form, head, chart, failed, breaches, h("section", {}, h("h2", {}, "Runs"), heads(), list.element, nothing, older));

  const chosen = (names) => Object.fromEntries([...new FormData(form)].filter(([name, value]) => value && names.includes(name)));
  let turn = 0;

  async function costs() {
    const mine = ++turn;
    const starts = days(PERIODS.find(([value]) => value === since.value)[2]);
    if (since.value === "24h") starts[0] = Date.now() / 1000 - 86400;
    const found = await get(`/api/costs?${new URLSearchParams({ days: starts.join(","), ...chosen([...FILTERS, "by"]) })}`);
    if (mine !== turn) return;
    const ended = Object.entries(found.statuses).map(([word, number]) => `${number} ${word}`);
    put(head, `${found.runs} ${found.runs === 1 ? "run" : "runs"}${found.cost === null ? "" : `, ${usd(found.cost, found.mark)} USD`}${found.tokens === null ? "" : `, ${count(found.tokens, found.mark)} tokens`}${ended.length ? `: ${ended.join(", ")}` : ""}${without(found.unanswered)}`);
    chart.hidden = !found.series.length;
    const firsts = starts.slice(0, -1);
    if (found.series.length) {
      const [options, data] = stacked(firsts.map((at, each) => (since.value === "24h" && !each ? starts[1] - 86400 : at)), found.series);
      plot.draw(options, data, `Cost a day by ${by.selectedOptions[0].text}, in all ${usd(found.cost)} USD; the table below has the numbers`);
    }
    const sums = found.series.map((one) => one.values.reduce((sum, value) => sum + (value ?? 0), 0));
    legend.replaceChildren(...found.series.map((one, at) => h("li", {}, h("span", { class: `swatch ${one.name === "others" ? "other" : `s${at}`}`, "aria-hidden": "true" }), said(one.name), " ", h("b", {}, usd(sums[at])))));
    table.lastChild.replaceChildren(h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Day"), ...found.series.map((one) => h("th", { scope: "col" }, said(one.name))))), h("tbody", {}, ...firsts.map((at, each) => h("tr", {}, h("th", { scope: "row" }, date(at)), ...found.series.map((one) => h("td", {}, usd(one.values[each]))))))));
    breaches.hidden = !found.breaches.length;
    breaches.lastChild.replaceChildren(...found.breaches.map((one) => h("li", {}, h("a", { href: runPath(one.run) }, one.run), ` ${one.kind.replaceAll("_", " ")}${one.used === null || one.of === null ? "" : ` ${Number(one.used.toPrecision(4))} of ${one.of}${one.reserved ? ` (${Number(one.reserved.toPrecision(4))} more reserved)` : ""}`}`)));
    failed.hidden = !found.failed.length;
    failed.lastChild.replaceChildren(...found.failed.reverse().map((one) => h("li", {}, h("a", { href: runPath(one.run) }, said(one.name), ` ${one.run}`), " ", said(one.reason))));
  }

  let next = null;
  async function runs(before = null) {
    const found = await get(`/api/history?${new URLSearchParams({ ...chosen(["since", "status", ...FILTERS]), ...(before ? { before } : {}) })}`);
    if (!before) list.take({ rows: found.rows, fresh: true });
    else list.take({ rows: found.rows });
    next = found.next;
    older.hidden = !next;
    if (found.unanswered.length) toast(`the list is${without(found.unanswered)}`, { bad: true });
    nothing.replaceChildren(...(list.rows.size ? [] : [empty("No run matches. Choose a longer period, or fewer filters.")]));
  }

  const load = async () => {
    byId("main").setAttribute("aria-busy", "true");
    try {
      await Promise.all([runs(), costs()]);
    } catch (error) {
      put(head, error.message);
      toast(error.message, { bad: true });
    }
    byId("main").removeAttribute("aria-busy");
  };
  const changed = () => {
    history.replaceState(null, "", `/history?${new URLSearchParams([...new FormData(form)].filter(([, value]) => value))}`);
    load();
  };
  form.addEventListener("change", changed);
  form.addEventListener("submit", (event) => { event.preventDefault(); changed(); });
  older.addEventListener("click", () => runs(next).catch((error) => toast(error.message, { bad: true })));
  load();
  // runs that are shown go on
  return new Live({ runs: "all" }, { runs: ({ rows, now }) => {
    const shown = rows.filter((run) => list.rows.has(run.id));
    if (shown.length) list.take({ rows: shown, now });
  }, daemon: (told) => list.show({ others: told.others }) });
}

