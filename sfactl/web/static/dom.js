// Elements are made here and nowhere from markup: what agents and users have written becomes text nodes.

/** Return an element with properties (attributes; `on` + event: a listener; `class`, `data` as names say) and children. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "data") Object.assign(element.dataset, value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Text from an agent or a user, in an isolate of its own: its direction does not reach what stands beside it. */
export const said = (text, properties = {}) => h("bdi", properties, text);

export const byId = (id) => document.getElementById(id);

/** Set the text of an element, if it is another. */
export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Have `parent` contain exactly these elements in this order, moving as few as possible. */
export function arrange(parent, elements) {
  let next = parent.firstChild;
  for (const element of elements) {
    if (element === next) next = next.nextSibling;
    else parent.insertBefore(element, next);
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  }
}

export function toast(text, { bad = false, lasts = 6000 } = {}) {
  const line = h("p", { class: bad ? "note bad" : "note" }, text);
  byId("toast").append(line);
  while (byId("toast").children.length > 4) byId("toast").firstChild.remove();
  if (lasts) setTimeout(() => line.remove(), bad ? 2 * lasts : lasts);
  return line;
}

/** Replace the content of `main`, with a heading that screen readers find. */
export function fill(title, ...children) {
  byId("main").replaceChildren(h("h1", { class: "hidden" }, title), ...children);
}

export const empty = (words, ...more) => h("div", { class: "empty" }, h("p", {}, words), ...more);
