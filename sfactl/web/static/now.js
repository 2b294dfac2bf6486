// What runs, the one thing that is wrong first.

import { byId, empty, fill, h, put, said } from "./dom.js";
import { moment, runPath, usd } from "./format.js";
import { Live } from "./live.js";
import { notice } from "./notify.js";
import { RunList, heads } from "./rows.js";

export function show() {
  const list = new RunList({ ended: true });
  const head = h("p", { class: "headline" }, "Loading…");
  const alerts = h("ul", { class: "alerts" });
  const filter = h("input", { type: "search", id: "filter", placeholder: "Filter", autocomplete: "off", value: new URLSearchParams(location.search).get("q") || "" });
  const order = h("select", { id: "order" }, ...[["need", "Trouble first"], ["cost", "Dearest first"], ["age", "Oldest first"], ["newest", "Newest first"]].map(([value, words]) => h("option", { value }, words)));
  const nothing = h("div");
  filter.addEventListener("input", () => {
    history.replaceState(null, "", filter.value ? `/?q=${encodeURIComponent(filter.value)}` : "/");
    list.show({ filter: filter.value });
  });
  order.addEventListener("change", () => list.show({ order: order.value }));
  fill(
    "Now",
    h("div", { class: "line" }, head, h("label", { for: "filter", class: "hidden" }, "Filter"), filter, h("label", { for: "order", class: "hidden" }, "Order"), order),
    alerts, heads(), list.element, nothing,
  );
  list.filter = filter.value;
  let daemon = null;
  let ready = false;
  let leftOut = 0; // queued runs that are only counted

  const tell = () => {
    if (!ready) return;
    const runs = list.runs;
    const live = runs.filter((run) => !run.ended);
    const waits = live.filter((run) => run.rank === 4).length;
    const stuck = live.filter((run) => run.rank === 3).length;
    const parts = [`${live.length + leftOut} live`];
    if (leftOut) parts.push(`${leftOut} more queued`);
    if (waits) parts.push(`${waits} ${waits === 1 ? "waits" : "wait"} for you`);
    if (stuck) parts.push(`${stuck} in trouble`);
    if (daemon?.cost !== null && daemon?.cost !== undefined) parts.push(`${usd(daemon.cost)} USD in the last ${daemon.window}${daemon.node ? ` on ${daemon.node}` : ""}`);
    if (daemon?.fullest) parts.push(daemon.fullest);
    put(head, parts.join(" · "));
    head.classList.toggle("bad", waits + stuck > 0);
    document.title = waits + stuck ? `(${waits + stuck}) Now · sfad` : "Now · sfad";
  };

  list.onplaced = (lines) => {
    if (!ready) return;
    if (lines) nothing.replaceChildren();
    else if (list.filter) nothing.replaceChildren(empty(`No run has: ${list.filter}`));
    else if (!nothing.firstChild) {
      nothing.replaceChildren(
        empty("No run yet.", h("p", { class: "quiet" }, "Press Start above, or in a terminal:"), h("pre", {}, "sfactl run claude 'look at HEAD~1'")),
      );
    }
  };

  const live = new Live({ runs: "all" }, {
    runs: (told) => {
      ready = true;
      leftOut = told.left_out;
      const before = list.take(told);
      for (const run of told.rows) notice(before.get(run.id), run); // also of what has changed while the connection was lost
      tell();
    },
    daemon: (told) => {
      daemon = told;
      list.show({ others: told.others });
      const about = told.alerts.filter((alert) => !alert.run); // those about a run stand in its line
      alerts.replaceChildren(...about.slice(0, 3).map((alert) =>
        h("li", {}, h("span", { class: "mark", "aria-hidden": "true" }, "▲"), " ", said(alert.message), " since ", moment(alert.since), alert.run ? h("a", { href: runPath(alert.run) }, ` ${alert.run}`) : null)));
      if (about.length > 3) alerts.append(h("li", {}, h("a", { href: "/events" }, `${about.length - 3} more alerts`)));
      tell();
    },
    away: () => byId("main").classList.add("away"),
    here: () => byId("main").classList.remove("away"),
  });
  return live;
}
