// The form for a model's inputs: a canvas, fields, a text box, or JSON for all others.

import { h, sentence } from "./dom.js";
import { fileForm, isFile } from "./files.js";
import { layoutOf, pictureForm } from "./images.js";
import { parse, stringify } from "./json.js";
import { columnsOf, tableForm } from "./tables.js";
import { fromNested, isText, nested } from "./tensors.js";

/** @typedef {import("./tensors.js").Spec} Spec */
/** @typedef {import("./tensors.js").Tensor} Tensor */

const MAX_EXAMPLE_ROWS = 20;

/**
 * A form for inputs. `read` raises an Error that names the missing value.
 * `columns` is set for a table.
 * @typedef {{element: HTMLElement, clear: () => void, read: () => Tensor[], columns?: import("./tables.js").Column[]}} Form
 */

/**
 * Make the form that fits a version's inputs, with JSON as an alternative.
 * @param {Spec[]} specs
 * @param {Spec[]} optional Optional inputs, which only JSON accepts.
 * @param {Record<string, unknown> | null} example Nested lists by input.
 * @param {Record<string, string>} properties The model's metadata.
 * @param {boolean} [whole] True to fill in all rows of the example, not only the first.
 * @returns {Form}
 */
export function formFor(specs, optional, example, properties, whole = false) {
  const fitting = fittingForm(specs, example, properties, whole ? MAX_EXAMPLE_ROWS : 1);
  const json = jsonForm(specs, optional, example);
  if (!fitting) return json;
  let current = fitting;
  const choice = h("input", { type: "checkbox", id: "as-json", onchange: () => {
    if (choice.checked) {
      try {
        json.take(fitting.read());
      } catch {
        json.clear(); // the form is incomplete
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

/** @param {Spec[]} specs @param {Record<string, unknown> | null} example @param {Record<string, string>} properties @param {number} most Maximum rows of the example. @returns {Form | null} */
function fittingForm(specs, example, properties, most) {
  if (specs.some(isFile)) return filesForm(specs, example, most);
  const [first] = specs;
  const layout = specs.length === 1 ? layoutOf(first) : null;
  if (layout) return pictureForm(first, layout);
  if (specs.length === 1 && isText(first.datatype) && isListOfTexts(first)) return textForm(first, example);
  const columns = columnsOf(specs, featureNames(properties));
  return columns ? tableForm(columns, exampleRows(columns, example, most)) : null;
}

/** Make a form for each input, if any of them is a file. @param {Spec[]} specs @param {Record<string, unknown> | null} example @param {number} most @returns {Form} */
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

/** Return the column names in a model's metadata, or an empty list. @param {Record<string, string>} properties @returns {string[]} */
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

/** Make a text box. @param {Spec} spec @param {Record<string, unknown> | null} example @returns {Form} */
function textForm(spec, example) {
  const box = h("textarea", { id: "text", rows: "4" });
  const given = /** @type {any} */ ([example?.[spec.name]]).flat(Infinity)[0];
  if (typeof given === "string") box.value = given;
  return {
    element: h("div", {}, h("label", { for: "text" }, spec.name), box),
    clear: () => { box.value = ""; },
    read: () => {
      if (!box.value.trim()) throw new Error("Enter a text first.");
      return [{ name: spec.name, datatype: spec.datatype, shape: (spec.shape ?? [1]).map(() => 1), data: [box.value] }];
    },
  };
}

/** Make a text box for all inputs as JSON. @param {Spec[]} specs @param {Spec[]} optional @param {Record<string, unknown> | null} example @returns {Form & {take: (tensors: Tensor[]) => void}} */
function jsonForm(specs, optional, example) {
  const start = compact(Object.fromEntries(specs.map(spec => [spec.name, example?.[spec.name] ?? filledIn(spec)])));
  const box = h("textarea", { id: "json", rows: "10", spellcheck: "false", class: "code" });
  box.value = start;
  return {
    element: h("div", {}, h("label", { for: "json" }, "Inputs, as JSON"), box,
      optional.length > 0 && h("p", { class: "hint" }, `Optional: ${optional.map(spec => `"${spec.name}"`).join(", ")}.`)),
    clear: () => { box.value = start; },
    take: tensors => { box.value = compact(Object.fromEntries(tensors.map(one => [one.name, nested(one)]))); },
    read: () => {
      let read;
      try {
        read = parse(box.value);
      } catch (error) {
        throw new Error(`This is not JSON: ${sentence(error)}`);
      }
      if (!read || typeof read !== "object" || Array.isArray(read)) throw new Error(`Enter an object: {${specs.map(spec => `"${spec.name}": …`).join(", ")}}.`);
      const missing = specs.find(spec => !(spec.name in read));
      if (missing) throw new Error(`The input "${missing.name}" is missing.`);
      const all = [...specs, ...optional], unknown = Object.keys(read).find(name => !all.some(spec => spec.name === name));
      if (unknown !== undefined) throw new Error(`The model has no input "${unknown}"; its inputs are ${all.map(spec => `"${spec.name}"`).join(", ")}.`);
      return all.filter(spec => spec.name in read).map(spec => fromNested(spec, read[spec.name]));
    },
  };
}

/** Return zeros for an input without an example. @param {Spec} spec */
function filledIn({ name, datatype, shape }) {
  const sizes = (shape ?? [1]).map(size => (typeof size === "number" ? size : 1));
  if (sizes.reduce((product, size) => product * size, 1) > 4096) return [];
  const data = new Array(sizes.reduce((product, size) => product * size, 1)).fill(isText(datatype) ? "" : 0);
  return nested({ name, datatype, shape: sizes, data });
}

/** Format JSON with each innermost list on its own line. @param {unknown} value */
const compact = value => stringify(value, 1).replace(/\[\s+([^[\]{}]*?)\s+\]/g, (_, inner) => `[${inner.replace(/\s*\n\s*/g, " ")}]`);
