// Where a key is typed in; it is forgotten when the page is left.

import { useKey } from "./api.js";
import { fill, h, sentence } from "./dom.js";

/**
 * A form for a key.
 * @param {() => void} again Called once there is one.
 * @param {import("./api.js").KeyKind} [kind]
 */
export function keyForm(again, kind = "callers") {
  const input = h("input", { type: "password", id: "key", autocomplete: "off" });
  const said = h("p", { class: "warning", role: "alert", hidden: true });
  return h("form", { class: "key", onsubmit: (/** @type {Event} */ event) => {
    event.preventDefault();
    try {
      useKey(input.value, kind);
    } catch (error) {
      said.hidden = false;
      fill(said, sentence(error));
      input.focus();
      return;
    }
    again();
  } }, h("label", { for: "key" }, kind === "metrics" ? "Key for metrics" : "Key"), input, h("button", { type: "submit" }, "Use it"), said,
    h("p", { class: "hint" }, "It is kept in this page's memory, and forgotten when the page is closed."));
}
