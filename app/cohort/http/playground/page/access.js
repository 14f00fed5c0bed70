// The form for a key. The key is forgotten when the page is left.

import { useKey } from "./api.js";
import { fill, h, sentence } from "./dom.js";

/**
 * Make a form for a key.
 * @param {() => void} again Called once a key is set.
 * @param {import("./api.js").KeyKind} [kind]
 */
export function keyForm(again, kind = "callers") {
  const input = h("input", { type: "password", id: "key", autocomplete: "off" });
  const warning = h("p", { class: "warning", role: "alert", hidden: true });
  return h("form", { class: "key", onsubmit: (/** @type {Event} */ event) => {
    event.preventDefault();
    try {
      useKey(input.value, kind);
    } catch (error) {
      warning.hidden = false;
      fill(warning, sentence(error));
      input.focus();
      return;
    }
    again();
  } }, h("label", { for: "key" }, kind === "metrics" ? "Key for metrics" : "Key"), input, h("button", { type: "submit" }, "Use key"), warning,
    h("p", { class: "hint" }, "The key is kept in this page's memory until the page is closed."));
}
