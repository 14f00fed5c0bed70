// Operators' actions. Their token is kept only in this module's memory.

import { ask, askJson, needsKey, pathOf } from "./api.js";
import { fill, h, sentence } from "./dom.js";

let token = "";

/**
 * Make buttons for an operator, who enters the token for them.
 * @param {string} name
 * @param {any} model The server's description.
 * @param {(model: any) => void | Promise<void>} changed Receives the model after an action.
 */
export function operate(name, model, changed) {
  const status = h("p", { role: "status" }), row = h("p", { class: "buttons" });
  const input = h("input", { type: "password", id: "admin-token", autocomplete: "off" });
  const forget = h("button", { type: "button", class: "quiet", hidden: !token, onclick: () => {
    token = "";
    forget.hidden = true;
    input.focus();
  } }, "Forget the token");

  /** @param {Action} action */
  const act = async ({ path, done }) => {
    token = input.value.trim() || token;
    input.value = "";
    forget.hidden = !token;
    row.inert = true;
    fill(status, h("span", { class: "hint" }, "Sent …"));
    try {
      await ask(`admin/${path}`, { method: "POST", headers: { authorization: `Bearer ${token}` } });
      const now = await askJson(pathOf(name));
      offer(now);
      await changed(now);
      fill(status, done);
    } catch (error) {
      const unasked = needsKey(error) && !token;
      fill(status, h("span", { class: "warning" }, unasked ? "Enter the admin token first: the server's COHORT_ADMIN_TOKEN, or an operator's key." : sentence(error)));
      if (unasked) input.focus();
    } finally {
      row.inert = false;
    }
  };
  const offer = (/** @type {any} */ now) => fill(row, ...actions(name, now).map(one => h("button", { type: "button", onclick: () => act(one) }, one.text)));
  offer(model);
  return h("details", { class: "about" }, h("summary", {}, h("h2", {}, "Operate")),
    h("form", { class: "key", onsubmit: (/** @type {Event} */ event) => {
      event.preventDefault();
      fill(status, h("span", { class: "hint" }, "Now choose an action."));
      row.querySelector("button")?.focus();
    } }, h("label", { for: "admin-token" }, "Admin token"), input, forget),
    h("p", { class: "hint" }, "The token is kept in this page's memory until the page is closed."),
    row, status);
}

/** @typedef {{text: string, path: string, done: string}} Action */

/** Return the actions that are possible now. @param {string} name @param {any} model @returns {Action[]} */
function actions(name, { rollout, versions }) {
  const encoded = encodeURIComponent(name), serves = versions.some((/** @type {any} */ one) => one.state === "READY");
  const tried = (rollout?.variants ?? []).filter((/** @type {any} */ one) => one.name !== rollout.baseline);
  return [
    ...tried.map((/** @type {any} */ { name: variant, rolled_back }) => rolled_back
      ? { text: `End the rollback of ${variant}`, path: `rollouts/${encoded}/clear/${encodeURIComponent(variant)}`, done: `${variant} has its share again.` }
      : { text: `Roll back ${variant}`, path: `rollouts/${encoded}/rollback/${encodeURIComponent(variant)}`, done: `${variant} is rolled back: its callers get ${rollout.baseline}.` }),
    { text: serves ? "Load again" : "Load", path: `models/${encoded}/load`, done: `${name} is loaded.` },
    ...(serves ? [{ text: "Unload", path: `models/${encoded}/unload`, done: `${name} is unloaded.` }] : []),
  ];
}
