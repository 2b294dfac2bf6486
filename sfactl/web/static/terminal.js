// The terminal of a run, drawn by xterm.js, which is here as it comes from its authors. A page looks until "Type" is pressed.

import { post } from "./api.js";
import { h, toast } from "./dom.js";
import { runPath } from "./format.js";

const FONT = 13; // px
const SMALLEST = 7; // px: what a telephone shows of 80 columns, while nobody types there
const AT_ONCE = 4000; // characters of one request
const SETTLED = 200; // ms after which a new size is told: a window that is drawn larger has many
const MOST_SIDE = 1000; // rows or columns, of which the daemon takes some more
const LEAVES = "]"; // with Ctrl, as in `sfactl attach`

const KEYS = [
  ["Esc", "\x1b"], ["Tab", "\t"], ["Ctrl", null], ["↑", "A", "Up"], ["↓", "B", "Down"], ["←", "D", "Left"], ["→", "C", "Right"],
  ["PgUp", "\x1b[5~"], ["PgDn", "\x1b[6~"], ["Enter", "\r"],
];

let loading = null;
function library() {
  loading ||= new Promise((resolve, reject) => {
    const script = h("script", { src: new URL("./xterm.js", import.meta.url).href });
    script.onload = () => resolve(window.Terminal);
    script.onerror = () => reject(new Error("xterm.js cannot be loaded"));
    document.head.append(script);
  });
  return loading;
}

// xterm.js writes styles into elements and attributes, which the policy of the page (CSP) forbids. Scripts may set the same by
// other interfaces: so it gets a document that makes sheets of the elements, and spans that take the attribute for one.
const styled = new Proxy(document, {
  get(target, key) {
    if (key === "createElement") return (tag) => (tag === "style" ? sheet() : target.createElement(tag));
    const value = Reflect.get(target, key, target);
    return typeof value === "function" ? value.bind(target) : value;
  },
});

function sheet() {
  const made = new CSSStyleSheet();
  document.adoptedStyleSheets.push(made);
  return Object.defineProperty(document.createElement("template"), "textContent", { set: (text) => made.replaceSync(text) });
}

const setAttribute = Element.prototype.setAttribute;
HTMLSpanElement.prototype.setAttribute = function (name, value) {
  if (name === "style") this.style.cssText = value;
  else setAttribute.call(this, name, value);
};

export class RunTerminal {
  /** `row` returns the run as it is now. */
  constructor(row) {
    this.row = row;
    this.place = h("div", { class: "run-terminal" });
    this.typing = false;
    this.typed = "";
    this.control = false;
    this.done = Promise.resolve(); // what was told is written, one after the other
    this.switch = h("button", { type: "button", class: "act", "aria-pressed": "false", hidden: true, onclick: () => this.type(!this.typing) }, "Type");
    this.size = h("span", { class: "quiet", id: "terminal-size" });
    this.keys = h("div", { class: "keys", role: "group", "aria-label": "Keys", hidden: true }, ...KEYS.map(([word, sent, name]) =>
      h("button", { type: "button", "aria-label": name, onpointerdown: (event) => event.preventDefault(), onclick: (event) => this.#key(sent, name, event.currentTarget) }, word)));
    this.element = h("div", { class: "terminal-part" }, h("div", { class: "line" }, this.size, this.switch), this.keys, this.place);
    new ResizeObserver(() => this.#resized()).observe(this.place);
    window.visualViewport?.addEventListener("resize", () => this.#resized()); // a telephone shows its keyboard
  }

  /** Write what the console has told. */
  take(piece) {
    this.done = this.done.then(() => this.#take(piece)).catch((error) => toast(error.message, { bad: true }));
  }

  /** Begin or end to type. */
  type(on) {
    this.typing = on;
    this.switch.setAttribute("aria-pressed", String(on));
    this.switch.textContent = on ? "Stop typing" : "Type";
    this.keys.hidden = !on;
    this.place.classList.toggle("typed", on);
    this.xterm.options.disableStdin = !on;
    this.#size();
    if (on) {
      this.#fit();
      this.element.scrollIntoView({ block: "nearest" });
      this.xterm.focus();
    } else {
      this.xterm.blur();
    }
  }

  /** Take what is known of the run: of one that has ended, nobody reads what is typed. */
  draw(run) {
    this.switch.hidden = run.ended || !this.xterm;
    if (run.ended && this.typing) this.type(false);
  }

  async #take({ text, rows, columns }) {
    if (!this.xterm) {
      this.xterm = await this.#open();
      if (this.row()) this.draw(this.row());
    }
    if (rows) {
      this.xterm.reset();
      this.xterm.resize(columns, rows);
      this.size.textContent = `${columns} × ${rows}`;
      this.#size();
    }
    await new Promise((resolve) => this.xterm.write(text, resolve));
  }

  async #open() {
    const Terminal = await library();
    const xterm = new Terminal({
      documentOverride: styled, disableStdin: true, scrollback: 2000, fontSize: FONT, logLevel: "off", altClickMovesCursor: false,
      fontFamily: getComputedStyle(this.place).fontFamily,
      minimumContrastRatio: 3, // some agents write black, or blue, on what they take for white
      theme: { background: "#14181b", foreground: "#e4e9ec", cursor: "#e4e9ec" },
      linkHandler: { activate: () => {} }, // none comes here: the console leaves them out
    });
    xterm.open(this.place);
    xterm.onData((data) => this.typing && this.#send(data));
    xterm.attachCustomKeyEventHandler((event) => {
      if (!(event.ctrlKey && event.key === LEAVES)) return true;
      event.preventDefault();
      if (event.type === "keydown" && this.typing) {
        this.type(false);
        this.switch.focus();
      }
      return false;
    });
    return xterm;
  }

  // ---- its size

  #cell() {
    const { width, height } = this.place.querySelector(".xterm-screen").getBoundingClientRect();
    return [width / this.xterm.cols, height / this.xterm.rows];
  }

  #resized() {
    clearTimeout(this.settling);
    this.settling = setTimeout(() => {
      if (!this.xterm) return;
      this.#size();
      if (this.typing) this.#fit();
    }, SETTLED);
  }

  /** While a person types, letters have their size; while one only looks, the columns have room. */
  #size() {
    let font = FONT;
    if (!this.typing) {
      const wide = (this.#cell()[0] / this.xterm.options.fontSize) * this.xterm.cols;
      font = Math.max(SMALLEST, Math.min(FONT, Math.floor((2 * this.#room()) / wide) / 2));
    }
    if (font !== this.xterm.options.fontSize) this.xterm.options.fontSize = font;
    const high = window.visualViewport?.height ?? innerHeight;
    this.place.style.height = this.typing ? `${Math.round(Math.max(160, Math.min(640, 0.65 * high)))}px` : "";
  }

  /** Return the pixels that columns may take. */
  #room() {
    const { paddingLeft, paddingRight } = getComputedStyle(this.place);
    const bar = this.xterm.element.querySelector(".xterm-viewport");
    return this.place.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight) - (bar.offsetWidth - bar.clientWidth);
  }

  /** Give the terminal the size of this page. */
  #fit() {
    const [wide, high] = this.#cell();
    const { paddingTop, paddingBottom } = getComputedStyle(this.place);
    const within = (value) => Math.max(2, Math.min(MOST_SIDE, Math.floor(value)));
    this.sides = { columns: within(this.#room() / wide), rows: within((this.place.clientHeight - parseFloat(paddingTop) - parseFloat(paddingBottom)) / high) };
    if (this.sides.columns !== this.xterm.cols || this.sides.rows !== this.xterm.rows) this.#send("");
  }

  // ---- what is typed

  #key(sent, name, key) {
    if (sent === null) {
      this.control = !this.control;
      key.setAttribute("aria-pressed", String(this.control));
    } else {
      const arrow = `\x1b${this.xterm.modes.applicationCursorKeysMode ? "O" : "["}${sent}`;
      this.#send(name ? arrow : sent);
    }
    this.xterm.focus();
  }

  #send(data) {
    if (this.control && data.length === 1) {
      data = String.fromCharCode(data.toUpperCase().charCodeAt(0) & 31);
      this.control = false;
      this.keys.querySelector("[aria-pressed=true]")?.setAttribute("aria-pressed", "false");
    }
    this.typed += data;
    this.#pump();
  }

  /** Send what was typed, one request after the other: two at once could change places. */
  async #pump() {
    if (this.sending) {
      this.again = true;
      return;
    }
    this.sending = true;
    try {
      do {
        this.again = false;
        const keys = this.typed.slice(0, AT_ONCE);
        this.typed = this.typed.slice(AT_ONCE);
        await post(`/api${runPath(this.row().id)}/keys`, { keys, ...this.sides });
      } while (this.typed || this.again);
    } catch (error) {
      this.typed = "";
      toast(error.message, { bad: true });
    } finally {
      this.sending = false;
    }
  }
}
