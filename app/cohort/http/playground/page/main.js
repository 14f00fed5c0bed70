// Shows the view of the current address.

import { keyForm } from "./access.js";
import { KEYS_CHANGED, forgetKeys, hasKey, needsKey } from "./api.js";
import { fill, h, sentence } from "./dom.js";
import { showLive } from "./live.js";
import { showModel } from "./model.js";
import { showModels } from "./models.js";
import { follow, parts } from "./routes.js";

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const access = /** @type {HTMLElement} */ (document.getElementById("access"));
let leave = new AbortController();

/** Show the view of the current address. */
async function show() {
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  const [view = "", name = "", , version = ""] = parts();
  document.title = ["Cohort", view === "models" ? name : view, version && `graph of ${version}`].filter(Boolean).join(" · ");
  for (const one of document.querySelectorAll("header nav a")) {
    const is = new URL(/** @type {HTMLAnchorElement} */ (one).href).pathname === location.pathname;
    if (is || (view === "models" && one.textContent === "Models")) one.setAttribute("aria-current", is ? "page" : "true");
    else one.removeAttribute("aria-current");
  }
  main.classList.toggle("whole", version !== "");
  main.setAttribute("aria-busy", "true");
  try {
    if (view === "") await showModels(main, signal);
    else if (view === "live") await showLive(main, signal);
    else if (view === "models" && version) await (await import("./graph.js")).showGraph(main, name, version, signal);
    else if (view === "models" && name) await showModel(main, name, signal);
    else fill(main, h("h1", {}, "Page not found"));
  } catch (error) {
    if (signal.aborted) return;
    fill(main, h("h1", {}, "Request failed"), h("p", { class: "warning", role: "alert" }, sentence(error)), needsKey(error) ? keyForm(showAgain) : h("p", {}, h("button", { onclick: show }, "Try again")));
  }
  if (!signal.aborted) main.removeAttribute("aria-busy");
}

/** Show the view with the new key. If the key is wrong, focus its field. */
async function showAgain() {
  await show();
  document.getElementById("key")?.focus();
}

/** Show that a key is in use. */
function showAccess() {
  fill(access, hasKey() && h("button", { class: "quiet", onclick: () => { forgetKeys(); show(); } }, "Forget the key"));
}

// These addresses are relative to the address that opened the page.
for (const one of document.querySelectorAll("a")) one.href = new URL(one.getAttribute("href") ?? "", document.baseURI).href;
document.addEventListener(KEYS_CHANGED, showAccess);
follow(main, show);
show();
