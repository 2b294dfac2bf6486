// Lines about runs, in trees: made once, changed in place, and moved only where their order changes.

import { act, button } from "./actions.js";
import { arrange, h, put, said } from "./dom.js";
import { clock, count, moment, percent, runPath, seconds, usd } from "./format.js";

const MARKS = { starting: "◔", running: "●", queued: "◌", accepted: "◌", paused: "‖", retrying: "↻", stopping: "◑", completed: "✓", cancelled: "■", lost: "?" };
export const markOf = (run) => (run.rank >= 3 ? "▲" : MARKS[run.status] || "✕");
const ROVING = 30; // lines from which on the arrow keys move between them, and Tab only within one
const SETTLE = 700; // ms that lines stand still after the pointer was on a button

const bar = h("div", { class: "gauge" }, h("span", { class: "kind" }), h("div", { class: "meter", role: "meter", "aria-valuemin": "0" }, h("i")), h("span", { class: "part" }));

/** A bar of a limit. */
export class Bar {
  constructor() {
    this.element = bar.cloneNode(true);
    [this.label, this.meter, this.value] = this.element.children;
    this.fill = this.meter.firstChild;
  }

  /** `more`: what was used since the daemon told of it. `words`: show the amounts, not the share. */
  set(limit, more = 0, words = false) {
    const used = limit.used === null ? null : limit.used + more;
    const part = used === null || !limit.threshold ? limit.part ?? 0 : used / limit.threshold;
    const shown = words ? limit.text : used === null ? "–" : percent(part);
    const key = `${limit.kind} ${limit.text} ${shown} ${Math.round(part * 500)}`;
    if (key === this.key) return;
    this.key = key;
    put(this.label, limit.kind.replaceAll("_", " "));
    // a title is its name as well, and what a pointer is shown
    this.meter.title = `${limit.kind.replaceAll("_", " ")} ${limit.text}`;
    this.meter.setAttribute("aria-valuemax", limit.threshold);
    this.meter.setAttribute("aria-valuenow", Math.min(used ?? 0, limit.threshold));
    this.meter.setAttribute("aria-valuetext", limit.text);
    this.fill.style.width = `${Math.min(part, 1) * 100}%`;
    this.element.dataset.level = !limit.acts || part < 0.8 ? "ok" : part < 1 ? "near" : "over";
    put(this.value, shown);
  }
}

// Lines are copies of this one: to make each from its parts takes three times as long, and there may be a thousand.
const number = (name) => h("span", { class: `num ${name}` }, h("span", { class: "unit" }, name === "cost" ? "USD" : name), h("b"));
const line = h(
  "li",
  { class: "run" },
  h("div", { class: "head" }, h("span", { class: "mark", "aria-hidden": "true" }), h("a", { class: "name" }, said("")), h("span", { class: "id" }), h("span", { class: "state" }), said("", { class: "user" })),
  h("p", { class: "why" }, h("time"), said("")), h("div", { class: "limits" }), ...["cost", "tokens", "turns", "time"].map(number), h("div", { class: "acts" }),
);
const buttons = new Map();

/** Return copies of the buttons for these verbs. */
function buttonsOf(verbs) {
  const key = verbs.join();
  if (!buttons.has(key)) {
    const all = document.createDocumentFragment();
    all.append(...verbs.map((verb) => button(verb)));
    buttons.set(key, all);
  }
  return buttons.get(key).cloneNode(true);
}

class Row {
  constructor(id) {
    this.id = id;
    this.element = line.cloneNode(true);
    const [head, why, bars, cost, tokens, turns, time, acts] = this.element.children;
    [this.mark, this.link, this.number, this.state, this.user] = head.children;
    Object.assign(this, { why, bars, cost, tokens, turns, time, acts, meters: [], shown: [], visible: true });
    this.name = this.link.firstChild;
    this.element.dataset.run = id;
    this.link.href = runPath(id);
    this.link.id = `run-${id}`;
    this.number.textContent = id;
  }

  set(run, told, others) {
    this.run = run;
    this.told = told;
    put(this.mark, markOf(run));
    put(this.name, run.name);
    put(this.state, run.word);
    put(this.user, others ? run.user : "");
    put(this.why.lastChild, run.why);
    this.#when();
    const { element } = this;
    if (element.dataset.rank !== String(run.rank)) element.dataset.rank = run.rank;
    if (element.dataset.status !== run.status) element.dataset.status = run.status;
    if (element.classList.contains("ended") !== run.ended) element.classList.toggle("ended", run.ended);
    if (run.depth !== this.depth) element.style.setProperty("--depth", Math.min(run.depth, 8));
    this.depth = run.depth;
    figure(this.cost, usd(run.cost, run.mark));
    figure(this.tokens, count(run.tokens, run.mark));
    figure(this.turns, count(run.turns));
    this.#limits();
    this.#verbs();
    this.tick();
  }

  #limits() {
    const shown = this.run.limits.filter((limit) => limit.kind !== "output" && limit.kind !== "pids");
    while (this.meters.length > shown.length) this.meters.pop().element.remove();
    while (this.meters.length < shown.length) {
      const one = new Bar();
      this.meters.push(one);
      this.bars.append(one.element);
    }
    this.shown = shown;
  }

  /** Say when it ended, or since when it is there. */
  #when() {
    const { over, ended, started, created } = this.run;
    const [word, at] = ended && over ? ["ended", over] : started ? ["started", started] : ["since", created];
    const shown = moment(at, `${word} ${clock(at)}`);
    if (shown.textContent !== this.why.firstChild.textContent) this.why.firstChild.replaceWith(shown);
  }

  #verbs() {
    const wanted = this.run.verbs.join();
    if (wanted === this.verbs) return;
    const focused = this.acts.contains(document.activeElement) ? document.activeElement.dataset.verb : null;
    this.verbs = wanted;
    this.acts.replaceChildren(buttonsOf(this.run.verbs));
    for (const each of this.acts.children) each.setAttribute("aria-describedby", this.link.id);
    if (focused) (this.acts.querySelector(`[data-verb="${focused}"]`) || this.acts.firstChild || this.link).focus();
    this.tabs?.();
  }

  /** Show the time, which goes on without news. */
  tick(now = Date.now() / 1000) {
    const { run } = this;
    const more = run.ticks ? Math.max(0, now - this.told) : 0;
    if (run.ended && run.over) {
      figure(this.time, seconds(run.elapsed));
    } else {
      figure(this.time, seconds(run.elapsed !== null ? run.elapsed + more : now - run.created));
    }
    this.shown.forEach((limit, at) => this.meters[at].set(limit, limit.kind === "time" ? more : 0));
  }
}

function figure(element, value) {
  if (element.lastChild.textContent === value) return;
  element.lastChild.textContent = value;
  element.classList.toggle("none", value === "–");
}

/** Lines in the order of need: a tree stands where its worst run would; within it, children follow their parents. */
export class RunList {
  constructor({ ended = false, order = "need" } = {}) {
    this.rows = new Map();
    this.ended = ended;
    this.order = order;
    this.filter = "";
    this.others = false;
    this.element = h("ol", { class: "runs" });
    this.element.addEventListener("focusin", (event) => this.#focus(event));
    this.element.addEventListener("keydown", (event) => this.#key(event));
    this.element.addEventListener("pointerover", (event) => { if (event.target.closest(".acts")) this.still = Date.now() + SETTLE; });
    this.element.addEventListener("click", (event) => this.#click(event));
    // only lines that are seen have a clock that goes
    this.seen = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        const row = this.rows.get(target.dataset.run);
        if (row) row.visible = isIntersecting;
        if (row && isIntersecting) row.tick();
      }
    }, { rootMargin: "200px" });
    setInterval(() => document.hidden || this.tick(), 1000);
  }

  get runs() {
    return [...this.rows.values()].map((row) => row.run);
  }

  /** Take lines; `fresh`: these are all. `gone`: ids to forget. Return the runs that were known before, by id. */
  take({ rows, gone = [], fresh = false, now = Date.now() / 1000 }) {
    const skew = Date.now() / 1000 - now;
    const before = new Map();
    let moves = fresh || gone.length > 0 || this.order === "cost";
    if (fresh) {
      const kept = new Set(rows.map((run) => run.id));
      for (const id of this.rows.keys()) if (!kept.has(id)) this.#forget(id);
    }
    for (const id of gone) this.#forget(id);
    for (const run of rows) {
      let row = this.rows.get(run.id);
      if (row) {
        before.set(run.id, row.run);
        moves ||= row.run.rank !== run.rank || row.run.ended !== run.ended || this.filter !== "";
      } else {
        this.rows.set(run.id, (row = new Row(run.id)));
        this.seen.observe(row.element);
        moves = true;
      }
      row.set(run, run.told + skew, this.others);
    }
    if (moves) this.#plan();
    return before;
  }

  show({ filter = this.filter, order = this.order, ended = this.ended, others = this.others }) {
    const renamed = others !== this.others;
    Object.assign(this, { filter, order, ended, others });
    if (renamed) for (const row of this.rows.values()) row.set(row.run, row.told, others);
    this.place();
  }

  tick() {
    const now = Date.now() / 1000;
    for (const row of this.rows.values()) if (row.visible && !row.run.ended) row.tick(now);
  }

  #forget(id) {
    const row = this.rows.get(id);
    if (row) this.seen.unobserve(row.element);
    this.rows.delete(id);
  }

  #click(event) {
    const pressed = event.target.closest("[data-verb]");
    const row = pressed && this.rows.get(pressed.closest("[data-run]").dataset.run);
    if (row) act(pressed.dataset.verb, row.run, pressed);
  }

  #plan() {
    if (this.planned) return;
    this.planned = true;
    // lines do not move away under a pointer that is about to press
    const wait = Math.max(0, (this.still || 0) - Date.now());
    setTimeout(() => { this.planned = false; this.place(); }, wait);
  }

  place() {
    const lines = this.sorted();
    const placed = this.element.contains(document.activeElement) ? document.activeElement : null;
    arrange(this.element, lines.map((row) => row.element));
    if (placed && placed !== document.activeElement && this.element.contains(placed)) placed.focus({ preventScroll: true });
    this.#tabs(lines);
    this.onplaced?.(lines.length);
  }

  sorted() {
    const all = [...this.rows.values()];
    const words = this.filter.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = new Set();
    for (const row of all) {
      if (words.length && !words.every((word) => text(row.run).includes(word))) continue;
      for (let each = row; each && !shown.has(each); each = this.rows.get(each.run.parent)) shown.add(each);
    }
    const below = new Map();
    const need = new Map();
    const live = new Set();
    for (const row of shown) {
      const parent = this.rows.has(row.run.parent) ? row.run.parent : null;
      if (!below.has(parent)) below.set(parent, []);
      below.get(parent).push(row);
      need.set(row.id, this.#key_of(row.run));
    }
    for (const row of [...shown].sort((one, other) => other.run.depth - one.run.depth)) {
      if (!row.run.ended) live.add(row.id);
      const { parent } = row.run;
      if (need.has(parent)) {
        need.set(parent, Math.max(need.get(parent), need.get(row.id)));
        if (live.has(row.id)) live.add(parent);
      }
    }
    const rank = (row) => (live.has(row.id) ? 1e15 : 0) + need.get(row.id);
    const newest = this.order === "newest";
    const found = [];
    const walk = (parent) => {
      const siblings = below.get(parent) || [];
      siblings.sort((one, other) => (newest ? 0 : rank(other) - rank(one)) || (newest || !live.has(one.id) ? -1 : 1) * (one.run.created - other.run.created || (one.id < other.id ? -1 : 1)));
      for (const row of siblings) {
        if (parent === null && !this.ended && !live.has(row.id)) continue;
        found.push(row);
        walk(row.id);
      }
    };
    walk(null);
    return found;
  }

  #key_of(run) {
    if (this.order === "cost") return (run.cost || 0) * 1000;
    if (this.order === "age") return 1e14 - run.created;
    return run.rank === 1 ? 0.5 : run.rank;
  }

  // ---- keys: in a long list, arrows move between lines, and Tab goes through the buttons of one

  #tabs(lines) {
    const roving = lines.length > ROVING;
    this.lines = lines;
    this.current = lines.includes(this.current) ? this.current : lines[0];
    for (const row of lines) {
      const index = !roving || row === this.current ? null : "-1";
      if (row.index !== index || row.tabs === undefined) {
        row.index = index;
        row.tabs = () => {
          for (const each of [row.link, ...row.acts.children]) {
            if (row.index === null) each.removeAttribute("tabindex");
            else each.setAttribute("tabindex", row.index);
          }
        };
        row.tabs();
      }
    }
  }

  #focus(event) {
    const row = this.rows.get(event.target.closest("[data-run]")?.dataset.run);
    if (row && row !== this.current) {
      this.current = row;
      this.#tabs(this.lines);
    }
  }

  #key(event) {
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    const next = this.lines[this.lines.indexOf(this.current) + step];
    if (next) {
      event.preventDefault();
      next.link.focus();
    }
  }
}

const text = (run) =>
  [run.id, run.name, run.user, run.type, run.word, run.status, ...Object.entries(run.labels).map(([key, value]) => `${key}=${value}`)].join(" ").toLowerCase();

export const heads = () =>
  h("div", { class: "heads", "aria-hidden": "true" }, ...["Run", "Limits", "USD", "Tokens", "Turns", "Time"].map((word) => h("span", { class: `h-${word.toLowerCase()}` }, word)));

