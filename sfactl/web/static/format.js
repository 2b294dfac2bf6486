// Figures and times for people, in the reader's zone. Unknown is a dash, never 0.

export const UNKNOWN = "–";

export function usd(value, mark = "") {
  if (value === null || value === undefined) return UNKNOWN;
  return mark + (value !== 0 && value < 0.01 ? value.toPrecision(1) : value.toFixed(2));
}

export function count(value, mark = "") {
  if (value === null || value === undefined) return UNKNOWN;
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (value >= size) {
      const part = value / (size === 1e4 ? 1e3 : size);
      return mark + (part < 10 ? part.toFixed(1) : Math.floor(part)) + unit;
    }
  }
  return mark + value;
}

export function seconds(value) {
  if (value === null || value === undefined) return UNKNOWN;
  const whole = Math.max(0, Math.floor(value));
  const [d, hours, m, s] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60, whole % 60];
  if (d) return `${d}d ${hours}h`;
  if (hours) return `${hours}h ${m}m`;
  return m ? `${m}m ${s}s` : `${s}s`;
}

const time = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });
const whole = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

/** Return the clock time today, with the day before it for other days. */
export function clock(at) {
  if (at === null || at === undefined) return UNKNOWN;
  const then = new Date(at * 1000);
  const today = then.toDateString() === new Date().toDateString();
  return today ? time.format(then) : `${day.format(then)} ${time.format(then).slice(0, 5)}`;
}

export const date = (at) => day.format(new Date(at * 1000));

/** Return a `time` element. */
export function moment(at, shown = clock(at)) {
  const element = document.createElement("time");
  if (at !== null && at !== undefined) {
    element.dateTime = new Date(at * 1000).toISOString();
    element.title = whole.format(new Date(at * 1000));
  }
  element.textContent = shown;
  return element;
}

export const percent = (part) => `${Math.floor(Math.min(part < 1 ? Math.min(part, 0.99) : part, 99) * 100 + 1e-9)} %`;

/** Return the time of the day, for an axis. */
export const hour = (at, exact) => time.format(new Date(at * 1000)).slice(0, exact ? 8 : 5);

/** Return the path of a run's page. In a fleet a run is called NODE/ID, and NODE~ID in a path. */
export const runPath = (id) => `/runs/${encodeURIComponent(id.replace("/", "~"))}`;

/** In a fleet: the node of this console. */
export const ownNode = () => document.body.dataset.node;
