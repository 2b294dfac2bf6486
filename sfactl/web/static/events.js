// What happened, the newest first, and the alerts that are raised.

import { get } from "./api.js";
import { empty, fill, h, said, toast } from "./dom.js";
import { moment, ownNode, runPath } from "./format.js";
import { Live } from "./live.js";

const MOST = 2000;
const BEGIN = 100; // events that the console begins with, so that fewer are all
const MARKS = { low: "·", medium: "◆", high: "▲" };

/** Return a line about an event. `run`: name its run. */
export function eventLine(event, { run = true } = {}) {
  return h(
    "li",
    { data: { seq: event.seq, severity: event.severity, type: event.type } },
    moment(event.time),
    h("span", { class: "mark", "aria-hidden": "true" }, MARKS[event.severity]),
    h("span", { class: "type" }, event.type.replaceAll("_", " "), event.severity === "low" ? null : h("span", { class: "hidden" }, `, ${event.severity}`)),
    h("span", { class: "what" }, run && event.run ? h("a", { href: runPath(event.run) }, said(event.name || event.run), " ", h("span", { class: "id" }, event.run)) : null, run && event.run ? " " : null, said(event.message)),
  );
}

const TYPES = [["", "All types"], ["run_*", "Runs"], ["limit_*,increase_*", "Limits"], ["alert_*", "Alerts"], ["daemon_*", "Daemon"], ["gateway_*,egress_*,meter_*", "Gateway and meters"]];

export function show() {
  const query = new URLSearchParams(location.search);
  const select = (name, options) => {
    const element = h("select", { id: name, name }, ...options.map(([value, words]) => h("option", { value }, words)));
    element.value = query.get(name) || options[0][0];
    if (element.selectedIndex < 0) element.append(new Option(query.get(name), query.get(name), true, true));
    return element;
  };
  const type = select("type", TYPES);
  const severity = select("severity", [["low", "Any severity"], ["medium", "Medium and high"], ["high", "High"]]);
  const alerts = h("ul", { class: "alerts" });
  const list = h("ol", { class: "events" });
  const older = h("button", { type: "button", hidden: true }, "Older");
  const nothing = h("div");
  let read = false; // whether older ones were asked for
  fill("Events and alerts",
    h("section", {}, h("h2", {}, "Alerts"), alerts),
    h("section", {}, h("div", { class: "line" }, h("h2", {}, "Events"), h("label", { for: "type", class: "hidden" }, "Type"), type, h("label", { for: "severity", class: "hidden" }, "Severity"), severity), ownNode() ? h("p", { class: "quiet" }, `Those of node ${ownNode()}. A run's page has those of the run; sfactl events --fleet, those of all nodes.`) : null, list, nothing, older));
  const chosen = () => ({ ...(type.value ? { type: type.value } : {}), ...(severity.value !== "low" ? { severity: severity.value } : {}) });
  const live = new Live({ events: "1", ...chosen() }, {
    events: (events) => {
      for (const event of events) if (event.seq > Number(list.firstChild?.dataset.seq || 0)) list.prepend(eventLine(event));
      while (list.children.length > MOST) list.lastChild.remove();
      if (list.children.length >= BEGIN && !read) older.hidden = false;
      nothing.replaceChildren();
    },
    here: () => setTimeout(() => { if (!list.firstChild) nothing.replaceChildren(empty("No such event so far. They appear here as they happen.")); }, 500),
    daemon: (told) => {
      alerts.replaceChildren(...told.alerts.map((alert) => h("li", {}, h("span", { class: "mark", "aria-hidden": "true" }, "▲"), " ", said(alert.message), " since ", moment(alert.since), alert.run ? h("a", { href: runPath(alert.run) }, ` ${alert.run}`) : null)));
      if (!told.alerts.length) alerts.append(h("li", { class: "quiet" }, "No alert is raised."));
    },
  });
  const changed = () => {
    history.replaceState(null, "", `/events?${new URLSearchParams(chosen())}`.replace(/\?$/, ""));
    list.replaceChildren();
    read = false;
    older.hidden = true;
    live.change({ events: "1", ...chosen() });
  };
  type.addEventListener("change", changed);
  severity.addEventListener("change", changed);
  older.addEventListener("click", async () => {
    try {
      const found = await get(`/api/events?${new URLSearchParams({ before: list.lastChild.dataset.seq, ...chosen() })}`);
      list.append(...found.events.map((event) => eventLine(event)));
      read = true;
      older.hidden = !found.more;
    } catch (error) {
      toast(error.message, { bad: true });
    }
  });
  return live;
}
