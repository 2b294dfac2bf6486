// Notifications while a page is open: a run that waits for a person, a tree that has ended badly.

import { byId, toast } from "./dom.js";
import { runPath } from "./format.js";

const BAD = new Set(["failed", "timeout", "lost"]);
const allowed = () => "Notification" in window && Notification.permission === "granted" && localStorage.getItem("notify") === "on";

export const on = allowed;

/** Tell of a run that was `before`, and is `run` now. */
export function notice(before, run) {
  if (!before || !allowed()) return;
  if (run.rank === 4 && before.rank !== 4) tell(`${run.name} ${run.word === "paused" ? "is paused" : "waits for you"}`, run);
  else if (run.ended && !before.ended && BAD.has(run.status) && !run.parent) tell(`${run.name} ended: ${run.word}`, run);
}

async function tell(title, run) {
  const options = { body: run.why, tag: run.id, data: runPath(run.id), icon: new URL("./icon.png", import.meta.url).href };
  const worker = await navigator.serviceWorker?.getRegistration();
  if (worker) worker.showNotification(title, options);
  else new Notification(title, options).onclick = () => { location.href = options.data; };
}

/** Connect the button of the menu. `changed` is called when they are switched. */
export function setUp(changed) {
  const button = byId("notify");
  const show = () => {
    button.setAttribute("aria-pressed", String(allowed()));
    button.textContent = allowed() ? "Notifications are on" : "Notify me";
    changed(allowed());
  };
  button.addEventListener("click", async () => {
    if (!("Notification" in window)) return toast("this browser has no notifications here; on a telephone, install the page first", { bad: true });
    const wanted = !allowed();
    if (wanted && (await Notification.requestPermission()) !== "granted") return toast("the browser does not allow notifications of this page", { bad: true });
    localStorage.setItem("notify", wanted ? "on" : "off");
    show();
  });
  show();
}
