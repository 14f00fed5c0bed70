// Shows the view that the address names.

import { Refused, hasKey, useKey } from "./api.js";
import { fill, h, sentence } from "./dom.js";
import { showLive } from "./live.js";
import { showModel } from "./model.js";
import { showModels } from "./models.js";
import { follow, parts } from "./routes.js";

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const access = /** @type {HTMLElement} */ (document.getElementById("access"));
let leave = new AbortController();

/** Show what the address names. */
async function show() {
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  const [view = "", name = "", , version = ""] = parts();
  document.title = ["Cohort", view === "models" ? name : view].filter(Boolean).join(" · ");
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
    else fill(main, h("h1", {}, "There is nothing here"));
  } catch (error) {
    if (signal.aborted) return;
    fill(main, h("h1", {}, "That did not work"), h("p", { class: "warning", role: "alert" }, sentence(error)), error instanceof Refused && error.status === 401 ? keyForm() : h("p", {}, h("button", { onclick: show }, "Try again")));
  }
  if (!signal.aborted) main.removeAttribute("aria-busy");
}

/** Where a caller's key is typed in; it is forgotten when the page is left. */
function keyForm() {
  const input = h("input", { type: "password", id: "key", autocomplete: "off" });
  return h("form", { class: "key", onsubmit: (/** @type {Event} */ event) => {
    event.preventDefault();
    useKey(input.value);
    showAccess();
    show();
  } }, h("label", { for: "key" }, "Key"), input, h("button", { type: "submit" }, "Use it"), h("p", { class: "hint" }, "It is kept in this page's memory, and forgotten when the page is closed."));
}

/** Say that a key is in use. */
function showAccess() {
  fill(access, hasKey() && h("button", { class: "quiet", onclick: () => { useKey(""); showAccess(); show(); } }, "Forget the key"));
}

// Their addresses are relative to the one that the page was opened at.
for (const one of document.querySelectorAll("a")) one.href = new URL(one.getAttribute("href") ?? "", document.baseURI).href;
follow(main, show);
show();
