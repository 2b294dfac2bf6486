// What a person may do with a run. What destroys asks first; what needs a value has a dialog.

import { post, get } from "./api.js";
import { h, said, toast } from "./dom.js";
import { runPath } from "./format.js";

export const VERBS = {
  stop: "Stop", pause: "Pause", resume: "Resume", approve: "Approve", deny: "Deny", limit: "Limit", send: "Send", continue: "Continue", land: "Land",
};

const HINTS = {
  approve: "Allow what it asks for: twice its limit (Limit sets another number first), or a call of a tool, which is shown first.",
  resume: "Let it go on. A limit that has paused it is doubled; Limit sets another number first.",
};

/** Return a button for a verb. `row` returns the run as it is now; without it, whoever has the button listens. */
export function button(verb, row = null) {
  const onclick = row && ((event) => act(verb, row(), event.currentTarget));
  return h("button", { type: "button", data: { verb }, class: `act do-${verb}`, title: HINTS[verb], onclick }, VERBS[verb]);
}

export async function act(verb, run, from) {
  if (run.call && (verb === "approve" || verb === "deny")) return answer(verb, run, run.call);
  if (verb === "stop") return ask(verb, run, ["Stop ", ...who(run), await below(run), "? Its processes get SIGTERM, and SIGKILL after the grace."]);
  if (verb === "deny") return ask(verb, run, ["Deny more to ", ...who(run), "? It is stopped."]);
  if (verb === "land") return ask(verb, run, ["Land the work of ", ...who(run), "? It is committed, and merged into the branch that is checked out where the run was started."]);
  if (verb === "limit") return changeLimits(run);
  if (verb === "send") return send(run);
  if (verb === "continue") return goOn(run);
  return carryOut(verb, run, {}, from);
}

const who = (run) => [said(run.name), ` (${run.id})`];
/** Return words about the live runs below a run, which a stop ends too. */
async function below(run) {
  if (!run.below) return "";
  try {
    const { live } = await get(`/api${runPath(run.id)}/live`);
    return live ? ` and ${live} below it` : "";
  } catch {
    return " and those below it";
  }
}

/** POST, with the button busy meanwhile. Return whether it was done; what came of it is told, and `acted` after it. */
async function carryOut(verb, run, body, from) {
  const busy = setTimeout(() => toast(`${VERBS[verb]} ${run.id}: waiting for the daemon…`), 1500);
  if (from) from.setAttribute("aria-busy", "true");
  try {
    const answer = await post(`/api${runPath(run.id)}/${verb}`, body);
    toast(answer.said, { bad: answer.bad });
    document.dispatchEvent(new Event("acted"));
    return true;
  } catch (error) {
    toast(error.message, { bad: true });
    return false;
  } finally {
    clearTimeout(busy);
    if (from) from.removeAttribute("aria-busy");
  }
}

/** Show a dialog. `accept` carries out what it is for; the dialog closes when that returns true. */
export function dialog(title, content, verb, accept, { danger = false } = {}) {
  const back = document.activeElement;
  const go = h("button", { type: "submit", class: danger ? "primary danger" : "primary" }, verb);
  // a modal dialog makes the rest inert; not all readers of the accessibility tree know
  const rest = [...document.querySelectorAll("header.bar, main")];
  const cover = (on) => rest.forEach((each) => { each.inert = on; each.ariaHidden = on ? "true" : null; });
  const box = h(
    "dialog",
    { "aria-labelledby": "dialog-title", oncancel: (event) => { event.preventDefault(); box.finish(); } },
    h(
      "form",
      {
        method: "dialog",
        onsubmit: async (event) => {
          event.preventDefault();
          go.disabled = true;
          if (await accept(new FormData(event.target))) box.finish();
          go.disabled = false;
        },
      },
      h("h2", { id: "dialog-title" }, ...[title].flat()),
      ...content,
      h("div", { class: "choices" }, h("button", { type: "button", onclick: () => box.finish() }, "Cancel"), go),
    ),
  );
  // at once, and not with the event of a close, which comes later: a key that follows is for what is below
  box.finish = () => {
    if (!box.isConnected) return;
    box.close();
    box.remove();
    cover(false);
    if (back?.isConnected) back.focus();
  };
  document.body.append(box);
  cover(true);
  box.showModal();
  return box;
}

function ask(verb, run, question) {
  // closed at once: a stop takes as long as the processes take, and is told when it is done
  const box = dialog(question, [], VERBS[verb], async () => {
    box.finish();
    carryOut(verb, run, {});
    return true;
  }, { danger: true });
  box.querySelector(".choices button").focus();
}

export function field(name, { area = false, value = "", hint = "", label = name, ...more } = {}) {
  const input = h(area ? "textarea" : "input", { name, id: `field-${name}`, autocomplete: "off", ...more });
  input.value = value;
  const note = hint ? h("span", { class: "quiet", id: `hint-${name}` }, hint) : null;
  if (note) input.setAttribute("aria-describedby", note.id);
  return h("div", { class: "field" }, h("label", { for: input.id }, label), input, note);
}

const FIRST = ["turns", "cost", "time", "tokens"];

async function changeLimits(run) {
  let found;
  try {
    found = await get(`/api${runPath(run.id)}`);
  } catch (error) {
    return toast(error.message, { bad: true });
  }
  const one = ([kind, now]) => field(kind, { hint: now ? `now ${now}` : "no limit", label: kind.replaceAll("_", " ") });
  const sorted = [...FIRST.map((kind) => found.kinds.find((each) => each[0] === kind)), ...found.kinds.filter((each) => !FIRST.includes(each[0]))];
  const content = [
    h("p", { class: "quiet" }, "Each counts from the start of the run. Empty: as it is. Units as in 2h, 200k, 1GiB; cost in USD."),
    h("div", { class: "fields" }, ...sorted.slice(0, FIRST.length).map(one)),
    h("details", {}, h("summary", {}, "More limits"), h("div", { class: "fields" }, ...sorted.slice(FIRST.length).map(one))),
  ];
  dialog(["Limits of ", ...who(run)], content, "Limit", (form) => {
    const limits = Object.fromEntries([...form].map(([kind, value]) => [kind, value.trim()]).filter(([, value]) => value));
    return carryOut("limit", run, { limits });
  });
}

/** Allow or deny the call of a tool that is shown, whatever the run asks for by then. */
function answer(verb, run, { call, words }) {
  const content = [h("p", {}, said(words))];
  if (verb === "deny") content.push(field("answer", { label: "message", hint: "What the agent is told" }));
  dialog([`${VERBS[verb]} ${call} of `, ...who(run), "?"], content, VERBS[verb], (form) =>
    carryOut(verb, run, { call, message: form.get("answer") ?? "" }),
  );
}

function send(run) {
  dialog(["Send to ", ...who(run)], [field("message", { area: true, rows: "3", hint: "A line for its stdin, if it was started with one" })], "Send", (form) =>
    carryOut("send", run, { message: form.get("message") }),
  );
}

function goOn(run) {
  const content = [
    h("p", { class: "quiet" }, "A new run continues the session of its agent. Limits count anew."),
    field("task", { area: true, rows: "3", hint: "Empty: why it ended, and to go on" }),
    field("limits", { hint: "As in: cost=5 turns=50. Empty: as it was started" }),
  ];
  dialog(["Continue ", ...who(run)], content, "Continue", (form) => carryOut("continue", run, Object.fromEntries(form)));
}

/** The form of a run's page. */
export function sendForm(row) {
  const form = h(
    "form",
    {
      class: "send",
      onsubmit: async (event) => {
        event.preventDefault();
        if (await carryOut("send", row(), { message: new FormData(form).get("message") })) form.reset();
      },
    },
    field("message", { hint: "A line for its stdin, if it was started with one" }),
    h("button", { type: "submit", class: "act" }, "Send"),
  );
  return form;
}

export async function start() {
  let found;
  try {
    found = await get("/api/agents");
  } catch (error) {
    return toast(error.message, { bad: true });
  }
  if (!found.agents.length) {
    return dialog("Start a run", [h("p", {}, "No agent is registered. Name one in [agents] of the config; sfactl agents lists them.")], "Start", () => true);
  }
  const choice = h("select", { name: "agent", id: "field-agent" }, ...found.agents.map((agent) => h("option", { value: agent.name }, agent.name)));
  const what = h("span", { class: "quiet", id: "hint-agent" });
  const describe = () => { what.textContent = found.agents.find((agent) => agent.name === choice.value)?.description || ""; };
  choice.setAttribute("aria-describedby", "hint-agent");
  choice.addEventListener("change", describe);
  describe();
  const content = [
    h("div", { class: "field" }, h("label", { for: "field-agent" }, "agent"), choice, what),
    field("task", { area: true, rows: "4", required: true }),
    field("name", { hint: "Empty: that of the agent" }),
    field("directory", { value: found.directory }),
    field("limits", { hint: "As in: cost=5 turns=50 time=2h. Empty: those of the config" }),
  ];
  dialog("Start a run", content, "Start", async (form) => {
    try {
      const answer = await post("/api/start", Object.fromEntries(form));
      toast(answer.said, { bad: answer.bad });
      if (document.body.dataset.page !== "now") location.href = runPath(answer.run);
      return true;
    } catch (error) {
      toast(error.message, { bad: true });
      return false;
    }
  });
}
