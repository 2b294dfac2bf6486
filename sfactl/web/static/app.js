// The beginning of each page: the parts that all pages have, and the module of this one.

import { start } from "./actions.js";
import { post } from "./api.js";
import { byId, h, toast } from "./dom.js";
import { dialog } from "./actions.js";
import { setUp } from "./notify.js";

const { show } = await import(`./${document.body.dataset.page}.js`);
const live = show();

byId("start").addEventListener("click", start);
setUp((on) => { if (live) live.stayOn = on; });
navigator.serviceWorker?.register("/sw.js").catch(() => {}); // without it, only notifications of a telephone are missing

byId("link").addEventListener("click", async () => {
  try {
    const { link } = await post("/api/link");
    const place = h("textarea", { readonly: true, rows: "3", "aria-label": "link" });
    place.value = link;
    dialog("Link for another device", [h("p", {}, "It logs in one browser, once, within ten minutes. Send it only to yourself."), place], "Copy", async () => {
      await navigator.clipboard?.writeText(link);
      toast("copied");
      return true;
    });
    place.select();
  } catch (error) {
    toast(error.message, { bad: true });
  }
});

for (const which of ["logout", "logout-all"]) {
  byId(which).addEventListener("click", async () => {
    await post(`/api/${which}`).catch((error) => toast(error.message, { bad: true }));
    location.reload();
  });
}

document.addEventListener("click", (event) => {
  const menu = document.querySelector(".menu");
  if (menu.open && !menu.contains(event.target)) menu.open = false;
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") document.querySelector(".menu").open = false;
  if (event.key === "/" && !event.target.closest("input, textarea, select, dialog") && byId("filter")) {
    event.preventDefault();
    byId("filter").focus();
  }
});
