// Subscriptions, budgets and quotas: what is left, and when they are renewed.

import { get } from "./api.js";
import { empty, fill, h, said, toast } from "./dom.js";
import { moment, ownNode, percent, runPath, seconds, usd } from "./format.js";
import { Live } from "./live.js";

const AGAIN = 10000;

function meter(name, part, words) {
  const bar = h("i");
  bar.style.width = `${Math.min(part, 1) * 100}%`;
  return h("div", { class: "meter", role: "meter", title: `${name}: ${words}`, "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": Math.round(Math.min(part, 1) * 100), "aria-valuetext": words }, bar);
}

const level = (part) => (part < 0.8 ? "ok" : part < 1 ? "near" : "over");

function card(name, part, words, ...more) {
  return h("li", { class: "card", data: { level: level(part) } }, h("h3", {}, said(name)), h("p", { class: "amount" }, words), meter(name, part, words), ...more);
}

/** A window of a subscription: what is used of it, what agents may use, and when it resets. */
function windowCard(account, each) {
  const used = each.used === null ? "use unknown" : `${percent(each.used)} used`;
  const words = `${used}${each.may < 1 ? `, agents may use ${percent(each.may)}` : ""}`;
  return card(
    `${account.name}, ${each.name}`, each.used ?? 0, words,
    h("p", { class: "quiet" }, ...(each.resets === null ? ["until its reset, which is not known"] : ["resets at ", moment(each.resets)]), ...(each.empty === null ? [] : ["; empty at ", moment(each.empty), " at this rate"])),
    each.refused ? h("p", {}, "▲ The provider refuses calls until then.") : null,
    account.held.length ? h("p", {}, `${account.held.length} ${account.held.length === 1 ? "run waits" : "runs wait"}: `, ...account.held.slice(0, 10).flatMap((run) => [h("a", { href: runPath(run) }, run), " "])) : null,
  );
}

export function show() {
  const budgets = h("ul", { class: "cards" });
  const quotas = h("ul", { class: "cards" });
  const plans = h("ul", { class: "cards" });
  fill("Plans and budgets", ownNode() ? h("p", { class: "quiet" }, `As node ${ownNode()} knows them. Nodes tell each other of subscriptions; sfactl status on the keeper has the budgets of all.`) : "", h("section", {}, h("h2", {}, "Subscriptions"), plans), h("section", {}, h("h2", {}, "Budgets"), budgets), h("section", {}, h("h2", {}, "Quotas"), quotas));

  async function read() {
    const found = await get("/api/money");
    plans.replaceChildren(...found.plans.flatMap((account) => account.windows.map((each) => windowCard(account, each))));
    if (!plans.firstChild) plans.replaceChildren(h("li", { class: "bare" }, empty("No subscription is known.", h("p", { class: "quiet" }, "Its windows are read from replies that pass the gateway, and from Codex's session files."))));
    budgets.replaceChildren(...found.budgets.map((each) => {
      const left = Math.max(0, each.of - each.used - each.reserved);
      return card(`${each.who}, this ${each.period}`, each.used / each.of, `${usd(each.used, each.mark)} of ${usd(each.of)} USD`, h("p", { class: "quiet" }, `${usd(left)} USD left; renews `, moment(Date.parse(each.renews) / 1000)));
    }));
    if (!found.budgets.length) budgets.replaceChildren(h("li", { class: "bare" }, empty("No budget is set.", h("p", { class: "quiet" }, "A budget bounds what a user or team may spend in a day, week or month: [budgets] in the config."))));
    quotas.replaceChildren(...found.quotas.map((each) => card(each.key.replaceAll("_", " ").replace(/^quotas\./, ""), each.of ? each.used / each.of : 0, `${each.used} of ${each.of}`, each.free ? h("p", { class: "quiet" }, `one more in ${seconds(each.free)}`) : null)));
    if (!found.quotas.length) quotas.replaceChildren(h("li", { class: "bare" }, empty("No quota applies here.")));
  }
  const again = () => read().catch((error) => toast(error.message, { bad: true }));
  again();
  setInterval(() => document.hidden || read().catch(() => {}), AGAIN); // the banner tells that the daemon is away
  return new Live({}, { here: again });
}
