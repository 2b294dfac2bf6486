// A screen of output: text nodes with colours. Escape sequences for colour and weight are kept; all others are left out.

import { h } from "./dom.js";

const MOST_LINES = 4000;
const ESCAPE = /\x1b(?:\[([0-9;:?<=>]*)[ -/]*([@-~])|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-Z\\^-~])/y;
const UNFINISHED = /\x1b(?:\[[0-9;:?<=>]*[ -/]*|[\]PX^_][^\x07\x1b]{0,4096}\x1b?|[ -/]*)?$/;

/** Characters that a page must not obey: other controls, and marks of direction that would reach other words. */
const ODD = /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]/g;
const shown = (text) => text.replace(ODD, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

export class Screen {
  constructor() {
    this.element = h("div", { class: "screen", tabindex: "0", role: "log", "aria-live": "off", "aria-label": "output" });
    this.clear();
    this.follows = true;
    this.element.addEventListener("scroll", () => {
      const { scrollTop, clientHeight, scrollHeight } = this.element;
      this.follows = scrollTop + clientHeight >= scrollHeight - 8;
    });
  }

  clear() {
    this.element.replaceChildren();
    this.held = "";
    this.style = {};
    this.line = null;
    this.lines = 0;
    this.returned = false;
  }

  write(text) {
    text = this.held + text;
    const cut = text.match(UNFINISHED);
    this.held = cut ? cut[0] : "";
    if (cut) text = text.slice(0, -cut[0].length || undefined);
    const batch = document.createDocumentFragment();
    const keep = this.follows;
    let at = 0;
    while (at < text.length) {
      const next = text.slice(at).search(/[\x1b\n\r]/);
      const end = next < 0 ? text.length : at + next;
      if (end > at) this.#add(text.slice(at, end), batch);
      at = end;
      const c = text[at];
      if (c === "\n") {
        this.#open(batch);
        this.line = null;
        this.returned = false;
        at += 1;
      } else if (c === "\r") {
        this.returned = true;
        at += 1;
      } else if (c === "\x1b") {
        ESCAPE.lastIndex = at;
        const found = ESCAPE.exec(text);
        if (found?.[2] === "m") this.#colour(found[1]);
        at += found ? found[0].length : 1;
      }
    }
    this.element.append(batch);
    while (this.lines > MOST_LINES) {
      this.element.firstChild.remove();
      this.lines -= 1;
    }
    if (keep) this.element.scrollTop = this.element.scrollHeight;
  }

  #open(batch) {
    if (!this.line) {
      this.line = h("div", { class: "out", dir: "auto" });
      batch.append(this.line);
      this.lines += 1;
    }
    return this.line;
  }

  #add(text, batch) {
    const line = this.#open(batch);
    if (this.returned) line.replaceChildren(); // a progress bar draws its line again
    this.returned = false;
    const { bold, dim, italic, underline, inverse, fg, bg } = this.style;
    const classes = [bold && "b", dim && "d", italic && "i", underline && "u", inverse && "v", fg !== undefined && `f${fg}`, bg !== undefined && `g${bg}`].filter(Boolean);
    line.append(classes.length ? h("span", { class: classes.join(" ") }, shown(text)) : shown(text));
  }

  #colour(parameters) {
    const codes = parameters.split(/[;:]/).map((code) => Number(code) || 0);
    const { style } = this;
    for (let at = 0; at < codes.length; at += 1) {
      const code = codes[at];
      if (code === 0) this.style = {};
      else if (code === 1) style.bold = true;
      else if (code === 2) style.dim = true;
      else if (code === 3) style.italic = true;
      else if (code === 4) style.underline = true;
      else if (code === 7) style.inverse = true;
      else if (code === 22) style.bold = style.dim = false;
      else if (code === 23) style.italic = false;
      else if (code === 24) style.underline = false;
      else if (code === 27) style.inverse = false;
      else if (code >= 30 && code <= 37) style.fg = code - 30;
      else if (code === 39) delete style.fg;
      else if (code >= 40 && code <= 47) style.bg = code - 40;
      else if (code === 49) delete style.bg;
      else if (code >= 90 && code <= 97) style.fg = code - 82;
      else if (code >= 100 && code <= 107) style.bg = code - 92;
      else if (code === 38 || code === 48) {
        const index = codes[at + 1] === 5 ? of256(codes[at + 2]) : of24(codes.slice(at + 2, at + 5));
        style[code === 38 ? "fg" : "bg"] = index;
        at += codes[at + 1] === 5 ? 2 : 4;
      }
      if (code === 0) return codes.length > at + 1 ? this.#colour(codes.slice(at + 1).join(";")) : undefined;
    }
  }
}

/** The nearest of the sixteen colours that the stylesheet has: a palette that is legible in light and in dark. */
function of256(index = 7) {
  if (index < 16) return index;
  if (index >= 232) return index < 238 ? 8 : index < 248 ? 7 : 15;
  const cube = index - 16;
  return of24([Math.floor(cube / 36) * 51, (Math.floor(cube / 6) % 6) * 51, (cube % 6) * 51]);
}

function of24([r = 0, g = 0, b = 0]) {
  const most = Math.max(r, g, b);
  if (most < 48) return 0;
  const bit = (value) => (value > most * 0.6 ? 1 : 0);
  return bit(r) + 2 * bit(g) + 4 * bit(b) + (most > 200 ? 8 : 0);
}
