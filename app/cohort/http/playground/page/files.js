// Inputs that are files: pictures with a preview, sound with a player, and others.

import { fill, h } from "./dom.js";

/** @typedef {import("./tensors.js").Spec} Spec */

/** The file dialog of each kind. @type {Record<string, {accept: string, title: string}>} */
const KINDS = {
  image: { accept: "image/*", title: "Choose a picture or drop it here" },
  audio: { accept: "audio/*", title: "Choose a sound file or drop it here" },
  file: { accept: "", title: "Choose a file or drop it here" },
};

/** Return true if callers send a file for an input. @param {Spec} spec */
export const isFile = ({ takes }) => takes !== undefined && takes in KINDS;

/**
 * Make a form for a file.
 * @param {Spec} spec
 * @param {string} id The id of its field.
 * @returns {import("./forms.js").Form}
 */
export function fileForm(spec, id) {
  const { accept, title } = KINDS[spec.takes ?? "file"];
  const seen = h("div", { class: "preview" }), said = h("p", { class: "hint", role: "alert" });
  /** @type {{b64: string} | null} */
  let value = null;
  let url = "", asked = 0;
  const clear = () => {
    asked++;
    value = null;
    field.value = "";
    said.textContent = "";
    fill(seen);
    if (url) URL.revokeObjectURL(url);
    url = "";
  };
  const take = async (/** @type {File | undefined} */ file) => {
    if (!file) return;
    const chosen = field.files?.[0] === file;
    if (!chosen) field.value = "";
    const mine = ++asked;
    value = null;
    said.textContent = "";
    const read = await base64(file).catch(() => null);
    if (mine !== asked) return; // another file was chosen since
    if (read === null) { fill(seen); said.textContent = `"${file.name}" cannot be read.`; return; }
    value = { b64: read };
    if (url) URL.revokeObjectURL(url);
    url = URL.createObjectURL(file);
    const name = h("figcaption", {}, `${file.name}, ${file.size.toLocaleString("en")} bytes`);
    const shown = spec.takes === "image" ? h("img", { src: url, alt: "The picture that is sent" })
      : spec.takes === "audio" ? h("audio", { src: url, controls: true }) : null;
    shown?.addEventListener("error", () => shown.remove()); // the server may accept formats that this browser does not
    fill(seen, h("figure", {}, shown, name));
  };
  const field = h("input", { type: "file", id, accept: accept || null, onchange: () => take(field.files?.[0]) });
  const element = h("div", { class: "file" }, h("label", { for: id }, `${spec.name}: ${title}`), field, seen,
    spec.processing && h("p", { class: "hint" }, spec.processing), said);
  element.addEventListener("dragover", event => { event.preventDefault(); element.classList.add("over"); });
  element.addEventListener("dragleave", () => element.classList.remove("over"));
  element.addEventListener("drop", event => {
    event.preventDefault();
    element.classList.remove("over");
    take(event.dataTransfer?.files[0]);
  });
  return {
    element,
    clear,
    read: () => {
      if (!value) throw new Error(`Choose or drop a file for "${spec.name}" first.`);
      return [{ name: spec.name, datatype: spec.datatype, shape: [1], data: /** @type {any} */ ([value]) }];
    },
  };
}

/** @param {File} file @returns {Promise<string>} */
const base64 = file => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(String(reader.result).replace(/^[^,]*,/, ""));
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(file);
});
