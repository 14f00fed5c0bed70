// The form for a model's inputs: a canvas, fields, a text box, or JSON where nothing else fits.

import { h, sentence } from "./dom.js";
import { fileForm, isFile } from "./files.js";
import { layoutOf, pictureForm } from "./images.js";
import { parse, stringify } from "./json.js";
import { columnsOf, tableForm } from "./tables.js";
import { fromNested, isText, nested } from "./tensors.js";

/** @typedef {import("./tensors.js").Spec} Spec */
/** @typedef {import("./tensors.js").Tensor} Tensor */

const MOST_EXAMPLE_ROWS = 20;

/**
 * What inputs are filled in by. `read` raises an Error that tells what is missing.
 * `columns` are those of a table.
 * @typedef {{element: HTMLElement, clear: () => void, read: () => Tensor[], columns?: import("./tables.js").Column[]}} Form
 */

/**
 * The form that fits a version's inputs, and JSON beside it.
 * @param {Spec[]} specs
 * @param {Spec[]} optional Inputs that may be left out; JSON alone takes them.
 * @param {Record<string, unknown> | null} example Nested lists by input.
 * @param {Record<string, string>} properties Of the model's metadata.
 * @param {boolean} [whole] Whether all rows of the example are filled in; else its first.
 * @returns {Form}
 */
export function formFor(specs, optional, example, properties, whole = false) {
  const fitting = fittingForm(specs, example, properties, whole ? MOST_EXAMPLE_ROWS : 1);
  const json = jsonForm(specs, optional, example);
  if (!fitting) return json;
  let current = fitting;
  const choice = h("input", { type: "checkbox", id: "as-json", onchange: () => {
    if (choice.checked) {
      try {
        json.take(fitting.read());
      } catch {
        json.clear(); // nothing whole is filled in
      }
    }
    current = choice.checked ? json : fitting;
    fitting.element.hidden = choice.checked;
    json.element.hidden = !choice.checked;
  } });
  json.element.hidden = true;
  return {
    element: h("div", {}, fitting.element, json.element, h("p", {}, choice, " ", h("label", { for: "as-json" }, "as JSON"))),
    clear: () => current.clear(),
    read: () => current.read(),
    columns: fitting.columns,
  };
}

/** @param {Spec[]} specs @param {Record<string, unknown> | null} example @param {Record<string, string>} properties @param {number} most Rows of the example. @returns {Form | null} */
function fittingForm(specs, example, properties, most) {
  if (specs.some(isFile)) return filesForm(specs, example, most);
  const [first] = specs;
  const layout = specs.length === 1 ? layoutOf(first) : null;
  if (layout) return pictureForm(first, layout);
  if (specs.length === 1 && isText(first.datatype) && isListOfTexts(first)) return textForm(first, example);
  const columns = columnsOf(specs, featureNames(properties));
  return columns ? tableForm(columns, exampleRows(columns, example, most)) : null;
}

/** A form for each input, where one at least is a file. @param {Spec[]} specs @param {Record<string, unknown> | null} example @param {number} most @returns {Form} */
function filesForm(specs, example, most) {
  const rest = specs.filter(spec => !isFile(spec));
  const forms = specs.filter(isFile).map(spec => fileForm(spec, `file-${spec.name}`));
  if (rest.length) forms.push(fittingForm(rest, example, {}, most) ?? jsonForm(rest, [], example));
  return {
    element: h("div", {}, ...forms.map(form => form.element)),
    clear: () => forms.forEach(form => form.clear()),
    read: () => forms.flatMap(form => form.read()),
  };
}

/** @param {Spec} spec */
const isListOfTexts = ({ shape }) => shape !== null && shape.length <= 2 && shape.slice(1).every(size => size === 1);

/** The names of columns in a model's metadata; empty where it has none. @param {Record<string, string>} properties @returns {string[]} */
export function featureNames(properties) {
  try {
    const read = JSON.parse(properties.feature_names ?? properties.features ?? "[]");
    return Array.isArray(read) ? read.map(String) : [];
  } catch {
    return [];
  }
}

/** @param {import("./tables.js").Column[]} columns @param {Record<string, unknown> | null} example @param {number} most @returns {string[][]} */
function exampleRows(columns, example, most) {
  if (!example) return [];
  const given = /** @type {Record<string, any>} */ (example);
  const known = columns.filter(({ spec }) => Array.isArray(given[spec.name]));
  const count = known.length ? Math.min(...known.map(({ spec }) => given[spec.name].length), most) : 0;
  const rows = Array.from({ length: count }, (_, number) => columns.map(({ spec, place }) => {
    const values = given[spec.name]?.[number] ?? (spec.name in given ? null : "");
    return Array.isArray(values) ? values[place] : values;
  }));
  const whole = rows.every(row => row.every((value, place) => value !== undefined && (value !== null || columns[place].gaps)));
  return whole ? rows.map(row => row.map(value => (value === null ? "" : String(value)))) : [];
}

/** A box for a text. @param {Spec} spec @param {Record<string, unknown> | null} example @returns {Form} */
function textForm(spec, example) {
  const box = h("textarea", { id: "text", rows: "4" });
  const given = /** @type {any} */ ([example?.[spec.name]]).flat(Infinity)[0];
  if (typeof given === "string") box.value = given;
  return {
    element: h("div", {}, h("label", { for: "text" }, spec.name), box),
    clear: () => { box.value = ""; },
    read: () => {
      if (!box.value.trim()) throw new Error("Write a text first.");
      return [{ name: spec.name, datatype: spec.datatype, shape: (spec.shape ?? [1]).map(() => 1), data: [box.value] }];
    },
  };
}

/** All inputs as JSON. @param {Spec[]} specs @param {Spec[]} optional @param {Record<string, unknown> | null} example @returns {Form & {take: (tensors: Tensor[]) => void}} */
function jsonForm(specs, optional, example) {
  const start = compact(Object.fromEntries(specs.map(spec => [spec.name, example?.[spec.name] ?? filledIn(spec)])));
  const box = h("textarea", { id: "json", rows: "10", spellcheck: "false", class: "code" });
  box.value = start;
  return {
    element: h("div", {}, h("label", { for: "json" }, "Inputs, as JSON"), box,
      optional.length > 0 && h("p", { class: "hint" }, `Also, where you like: ${optional.map(spec => `"${spec.name}"`).join(", ")}.`)),
    clear: () => { box.value = start; },
    take: tensors => { box.value = compact(Object.fromEntries(tensors.map(one => [one.name, nested(one)]))); },
    read: () => {
      let read;
      try {
        read = parse(box.value);
      } catch (error) {
        throw new Error(`This is not JSON: ${sentence(error)}`);
      }
      if (!read || typeof read !== "object" || Array.isArray(read)) throw new Error(`Write an object: {${specs.map(spec => `"${spec.name}": …`).join(", ")}}.`);
      const missing = specs.find(spec => !(spec.name in read));
      if (missing) throw new Error(`The input "${missing.name}" is missing.`);
      const all = [...specs, ...optional], unknown = Object.keys(read).find(name => !all.some(spec => spec.name === name));
      if (unknown !== undefined) throw new Error(`The model has no input "${unknown}"; it takes ${all.map(spec => `"${spec.name}"`).join(", ")}.`);
      return all.filter(spec => spec.name in read).map(spec => fromNested(spec, read[spec.name]));
    },
  };
}

/** Zeros, where a model has no example. @param {Spec} spec */
function filledIn({ name, datatype, shape }) {
  const sizes = (shape ?? [1]).map(size => (typeof size === "number" ? size : 1));
  if (sizes.reduce((product, size) => product * size, 1) > 4096) return [];
  const data = new Array(sizes.reduce((product, size) => product * size, 1)).fill(isText(datatype) ? "" : 0);
  return nested({ name, datatype, shape: sizes, data });
}

/** JSON with each innermost list on a line of its own. @param {unknown} value */
const compact = value => stringify(value, 1).replace(/\[\s+([^[\]{}]*?)\s+\]/g, (_, inner) => `[${inner.replace(/\s*\n\s*/g, " ")}]`);
