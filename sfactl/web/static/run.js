// A run: why it is as it is, its limits, what it used over time, what it prints, its children, calls and events.

import { button, sendForm } from "./actions.js";
import { get } from "./api.js";
import { Screen } from "./ansi.js";
import { byId, empty, h, put, said } from "./dom.js";
import { count, moment, ownNode, runPath, seconds, usd } from "./format.js";
import { Live, banner } from "./live.js";
import { notice } from "./notify.js";
import { Plot, overTime } from "./plot.js";
import { Bar, RunList, markOf } from "./rows.js";
import { eventLine } from "./events.js";
import { RunTerminal } from "./terminal.js";

const AGAIN = 1000; // ms between two readings of what a stream does not tell
const SOON = 3; // seconds after the start within which a first figure leaves nothing unknown

/** What was used from the start on: nothing at the start, unknown until the first known point. */
function fromBegin(begin, points) {
  const first = points[0]?.[0] ?? Date.now() / 1000;
  return [[begin, 0], ...(first - begin > SOON ? [[begin + 0.001, null]] : []), ...points];
}

export function show() {
  const id = document.body.dataset.of;
  let row = null;
  let seen = {};
  let skew = 0; // seconds that the clock of this machine is ahead of the console's
  const mark = h("span", { class: "mark", "aria-hidden": "true" });
  const name = said(id);
  const state = h("span", { class: "state" });
  const acts = h("div", { class: "acts" });
  const sentence = h("p", { class: "sentence", dir: "auto" });
  const numbers = h("dl", { class: "numbers" });
  const bars = h("div", { class: "limits big" });
  const facts = h("dl", { class: "facts" });
  const children = new RunList({ ended: true, order: "need" });
  const childrenPart = h("section", { hidden: true }, h("h2", {}, "Children"), children.element);
  const cost = new Plot(170, "cost over time");
  const tokens = new Plot(170, "tokens over time");
  const plots = h("section", {}, h("h2", {}, "Use over time"), h("div", { class: "plots" }, h("figure", {}, h("figcaption", {}, "Cost, USD"), cost.place), h("figure", {}, h("figcaption", {}, "Tokens"), tokens.place)));
  const plotNote = h("p", { class: "quiet" });
  plots.append(plotNote);
  const calls = h("tbody");
  const callsPart = h("section", { hidden: true }, h("h2", {}, "Model calls"),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Model calls" }, h("table", {}, h("thead", {}, h("tr", {}, ...["Time", "Model", "In", "Cached", "Out", "USD", "Seconds", "What happened"].map((word) => h("th", { scope: "col" }, word)))), calls)));
  const screen = new Screen();
  let terminal = null;
  const which = h("select", { id: "stream" }, h("option", { value: "output" }, "stdout"), h("option", { value: "stderr" }, "stderr"));
  const sending = h("div", { hidden: true }, sendForm(() => row));
  const timeline = h("ol", { class: "events" });
  const title = h("h1", {}, mark, " ", name, " ", h("span", { class: "id" }, id));

  byId("main").replaceChildren(
    h("article", { class: "page-run", data: { run: id } },
      h("header", {}, h("p", { class: "path" }), h("div", { class: "title" }, title, state, acts), sentence),
      numbers,
      h("section", {}, h("h2", {}, "Limits"), bars),
      plots,
      h("section", {}, h("div", { class: "line" }, h("h2", {}, "Output"), h("label", { for: "stream", class: "hidden" }, "Stream"), which), screen.element, sending),
      childrenPart,
      callsPart,
      h("section", {}, h("h2", {}, "Timeline"), timeline),
      h("section", {}, h("h2", {}, "About"), facts),
    ),
  );

  function draw(run) {
    row = run;
    put(mark, markOf(run));
    put(name, run.name);
    put(state, run.word);
    document.title = `${run.name} (${run.id}) ${run.word} · sfad`;
    const article = document.querySelector(".page-run");
    article.dataset.rank = run.rank;
    article.dataset.status = run.status;
    const verbs = run.verbs.filter((verb) => verb !== "send");
    if (acts.dataset.verbs !== verbs.join()) {
      acts.dataset.verbs = verbs.join();
      acts.replaceChildren(...verbs.map((verb) => button(verb, () => row)));
    }
    sending.hidden = !run.verbs.includes("send");
    terminal?.draw(run);
    if (!run.ended) put(sentence, run.why);
    const path = document.querySelector(".path");
    path.replaceChildren(h("a", { href: "/" }, "Now"), ...(run.parent ? [" / ", run.root !== run.parent ? h("a", { href: runPath(run.root) }, run.root) : null, run.root !== run.parent ? " / … / " : null, h("a", { href: runPath(run.parent) }, run.parent)].filter(Boolean) : []), " / ", run.id);
    figures(run);
  }

  const values = {};
  function figures(run) {
    const more = run.ticks ? Math.max(0, Date.now() / 1000 - skew - run.told) : 0;
    const shown = {
      cost: [`${usd(run.cost, run.mark)} USD`], tokens: [count(run.tokens, run.mark)], turns: [count(run.turns)],
      time: [seconds(run.elapsed === null ? null : run.elapsed + more)], started: [moment(run.started)],
      ended: [run.over ? moment(run.over) : "–"], processes: [run.processes ?? "–"],
    };
    if (!numbers.firstChild) {
      for (const word of Object.keys(shown)) numbers.append(h("div", {}, h("dt", {}, word), (values[word] = h("dd"))));
    }
    for (const [word, [value]] of Object.entries(shown)) {
      if (values[word].textContent !== String(value.textContent ?? value)) values[word].replaceChildren(value);
    }
  }

  function detail(found) {
    put(sentence, found.sentence || found.row.why);
    bars.replaceChildren(...(found.limits.length ? found.limits : []).map((limit) => {
      const bar = new Bar();
      bar.set(limit, 0, true);
      bar.element.append(h("span", { class: "quiet words" }, limit.words.split(";").slice(1).join(";").trim()));
      if (limit.used === null) bar.meter.hidden = true;
      return bar.element;
    }));
    if (!found.limits.length) bars.append(h("p", { class: "quiet" }, "No limit of its own."));
    facts.replaceChildren(...found.facts.flatMap(([word, value]) => [h("dt", {}, word), h("dd", {}, word.startsWith("continue") ? h("a", { href: runPath(value) }, value) : said(value))]));
  }

  function use(found) {
    callsPart.hidden = !found.calls.length;
    const known = new Set([...calls.children].map((line) => line.dataset.key));
    for (const call of found.calls) {
      const key = `${call.key}-${call.state}`;
      if (known.has(key)) continue;
      const line = h("tr", { data: { key, call: call.key } }, h("td", {}, moment(call.time)), h("td", {}, said(call.model)), h("td", {}, count(call.input)), h("td", {}, count(call.cached)), h("td", {}, count(call.output)), h("td", {}, usd(call.cost, call.mark)), h("td", {}, call.seconds === null ? "–" : call.seconds.toFixed(1)), h("td", {}, said(call.note ? `${call.state}: ${call.note}` : call.state)));
      const before = calls.querySelector(`[data-call="${CSS.escape(call.key)}"]`);
      if (before) before.replaceWith(line);
      else calls.append(line);
    }
    const points = { cost: [], tokens: [] };
    const begin = row.started ?? row.created;
    if (found.calls.some((call) => call.cost !== null) && !row.below) {
      let [usdSum, tokenSum] = [0, 0];
      points.cost.push([begin, 0]);
      points.tokens.push([begin, 0]);
      for (const call of found.calls) {
        const at = call.time + (call.seconds || 0);
        points.cost.push([at, (usdSum += call.cost || 0)]);
        points.tokens.push([at, (tokenSum += (call.input || 0) + (call.output || 0))]);
      }
      for (const one of Object.values(points)) one.sort((a, b) => a[0] - b[0]);
      put(plotNote, found.more ? "Only the first calls are shown." : "");
    } else {
      points.cost = fromBegin(begin, found.points.map(([at, value]) => [at, value]));
      points.tokens = fromBegin(begin, found.points.map(([at, , value]) => [at, value]));
      put(plotNote, found.points.length ? "Without the gateway, what was used between two points is known only while a page of the console is open." : "");
    }
    const end = row.over ?? Date.now() / 1000;
    if (row.cost !== null) points.cost.push([Math.max(end, points.cost.at(-1)[0]), row.cost]);
    if (row.tokens !== null) points.tokens.push([Math.max(end, points.tokens.at(-1)[0]), row.tokens]);
    const limit = (kind) => seen.limits?.find((one) => one.kind === kind)?.threshold;
    plots.hidden = row.cost === null && row.tokens === null;
    for (const [plot, kind, what] of [[cost, "cost", "USD"], [tokens, "tokens", "tokens"]]) {
      plot.place.parentElement.hidden = row[kind] === null;
      if (row[kind] !== null) plot.draw(...overTime(points[kind], limit(kind), what));
    }
  }

  /** Place an event in its order: one that is pushed may come before the list of earlier ones. */
  function placeEvent(event) {
    const lines = [...timeline.children];
    const before = lines.findLast((line) => Number(line.dataset.seq) <= event.seq);
    if (Number(before?.dataset.seq) === event.seq) return;
    const line = eventLine(event, { run: event.run !== id });
    if (before) before.after(line);
    else timeline.prepend(line);
  }

  let reading = null;
  let wanted = false;
  /** Read what the stream does not tell, at most once in a while. */
  async function read() {
    if (reading) {
      wanted = true;
      return;
    }
    reading = new Promise((resolve) => setTimeout(resolve, AGAIN));
    try {
      const found = await get(`/api${runPath(id)}`);
      if (ownNode() && found.row.id !== id) return location.replace(runPath(found.row.id)); // another name of it
      seen = found;
      if (!row || row.ended !== found.row.ended || found.row.ended) draw(found.row);
      detail(found);
      use(await get(`/api${runPath(id)}/calls`));
    } catch (error) {
      if (row) return;
      live.close();
      banner("");
      byId("main").replaceChildren(empty(error.message, h("p", {}, h("a", { href: "/" }, "What runs now"), " · ", h("a", { href: "/history" }, "History"))));
    }
    await reading;
    reading = null;
    if (wanted) {
      wanted = false;
      read();
    }
  }

  get(`/api${runPath(id)}/tree`).then(({ rows }) => {
    if (rows.length) {
      children.take({ rows: rows.filter((run) => !children.rows.has(run.id)) });
      childrenPart.hidden = false;
    }
  }).catch(() => {}); // the run is unknown, which `read` tells
  read();
  // of an ended run, no event tells what has landed meanwhile
  document.addEventListener("acted", read);
  document.addEventListener("visibilitychange", () => document.hidden || read());
  setInterval(() => row && figures(row), 1000);

  const query = () => ({ runs: id, events: "1", run: id, output: id, ...(which.value === "stderr" ? { stderr: "1" } : {}) });
  const live = new Live(query(), {
    runs: ({ rows, now }) => {
      skew = Date.now() / 1000 - now;
      const own = rows.find((run) => run.id === id);
      const others = rows.filter((run) => run.id !== id);
      if (own) {
        notice(row, own);
        draw(own);
        read();
      }
      if (others.length) {
        children.take({ rows: others, now });
        childrenPart.hidden = false;
      }
    },
    events: (events) => {
      for (const event of events) placeEvent(event);
      read();
    },
    output: (text) => screen.write(text),
    terminal: (piece) => {
      if (!terminal) {
        terminal = new RunTerminal(() => row);
        which.hidden = true; // a terminal has one stream
        screen.element.replaceWith(terminal.element);
        if (row) terminal.draw(row);
      }
      terminal.take(piece);
    },
    away: () => byId("main").classList.add("away"),
    here: () => byId("main").classList.remove("away"),
  });
  which.addEventListener("change", () => {
    screen.clear();
    const [epoch, version, seq] = live.last.split(".");
    live.change(query(), `${epoch}.${version}.${seq}.`);
  });
  return live;
}

