// The connection on which the console tells what changes. It comes back by itself, also after sleep, with what was missed.

import { byId } from "./dom.js";

const STALE = 25000; // ms without a message: the console sends one every 10 s
const AGAIN = 1500;
const HIDDEN = 60000; // ms after which a page that nobody sees hangs up: a browser has six connections for all tabs

export class Live {
  /** `parameters`: the query of /api/stream. `handlers`: a function for each kind of message. */
  constructor(parameters, handlers) {
    this.handlers = handlers;
    this.last = "";
    this.stayOn = false;
    this.parameters = parameters;
    this.hidden = null;
    document.addEventListener("visibilitychange", () => this.#visible());
    setInterval(() => this.#look(), 2000);
    this.#open();
  }

  /** Follow something else. `last`: the id to go on from; empty for a new start. */
  change(parameters, last = "") {
    this.parameters = parameters;
    this.last = last;
    this.#open();
  }

  close() {
    this.source?.close();
    this.source = null;
  }

  #open() {
    this.close();
    const query = new URLSearchParams(this.parameters);
    if (this.last) query.set("last", this.last);
    const source = new EventSource(`/api/stream?${query}`);
    this.source = source;
    this.heard = Date.now();
    for (const kind of ["runs", "here", "away", "daemon", "events", "output", "terminal", "trouble", "beat"]) {
      source.addEventListener(kind, (message) => {
        if (source !== this.source) return;
        this.heard = Date.now();
        if (message.lastEventId) this.last = message.lastEventId;
        const value = JSON.parse(message.data);
        if (kind === "away") banner(`disconnected: ${value} – reconnecting…`);
        else if (kind === "here") banner("");
        else if (kind === "trouble") banner(value);
        this.handlers[kind]?.(value);
      });
    }
    source.onerror = () => {
      if (source !== this.source) return;
      banner("disconnected from the console – reconnecting…");
      this.handlers.away?.();
      if (source.readyState === EventSource.CLOSED) this.#refused(source);
    };
  }

  /** The console has answered with an error, after which a browser does not try again. */
  async #refused(source) {
    try {
      const response = await fetch("/api/agents");
      if (response.status === 403) banner("logged out: open a new link of sfactl web, or load this page again");
    } catch {
      // it is away
    }
    setTimeout(() => source === this.source && this.#open(), AGAIN);
  }

  #look() {
    if (this.source && Date.now() - this.heard > STALE) {
      banner("disconnected from the console – reconnecting…");
      this.#open();
    }
  }

  #visible() {
    clearTimeout(this.hidden);
    if (document.hidden) {
      this.hidden = setTimeout(() => !this.stayOn && this.close(), HIDDEN);
    } else if (!this.source || this.source.readyState === EventSource.CLOSED || Date.now() - this.heard > STALE / 2) {
      this.#open();
    }
  }
}

export function banner(words) {
  const element = byId("banner");
  if (element.textContent !== words) element.textContent = words;
}
