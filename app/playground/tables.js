// Inputs that are tables: fields for each column, and rows pasted as CSV.

import { isNumber, rowsFor } from "./csv.js";
import { fill, h, sentence } from "./dom.js";
import { isText, typed } from "./tensors.js";

/** @typedef {import("./tensors.js").Spec} Spec */

/** A column: of which input, and which of its values. @typedef {{name: string, spec: Spec, place: number, wide: number, text: boolean}} Column */

const MOST_COLUMNS = 64, MOST_ROWS = 1000, MOST_SHOWN = 20;

/**
 * The columns of inputs that are those of a table: one row for each caller's row.
 * @param {Spec[]} specs
 * @param {string[]} names Of the features, where the model's metadata has them.
 * @returns {Column[] | null} null where they are not.
 */
export function columnsOf(specs, names) {
  /** @type {Column[]} */
  const columns = [];
  for (const spec of specs) {
    const shape = spec.shape;
    if (!spec.transportable || !shape || shape.length < 1 || shape.length > 2 || typeof shape[0] === "number") return null;
    const wide = shape.length === 1 ? 1 : shape[1];
    if (typeof wide !== "number" || wide < 1 || columns.length + wide > MOST_COLUMNS) return null;
    for (let place = 0; place < wide; place++)
      columns.push({ name: wide === 1 ? spec.name : `${spec.name} ${place + 1}`, spec, place, wide, text: isText(spec.datatype) });
  }
  if (names.length === columns.length) names.forEach((name, place) => { columns[place].name = name; });
  return columns.length ? columns : null;
}

/**
 * A form of rows.
 * @param {Column[]} columns
 * @param {string[][]} example Rows to begin with.
 * @returns {import("./forms.js").Form}
 */
export function tableForm(columns, example) {
  const empty = () => columns.map(() => "");
  let rows = example.length ? example : [empty()];
  const table = h("div", { class: "rows" });
  const said = h("p", { class: "hint", role: "alert" });

  const field = (/** @type {string[]} */ row, /** @type {Column} */ column, /** @type {number} */ place, /** @type {number} */ number) => {
    const id = `cell-${number}-${place}`;
    const input = h("input", {
      id, value: row[place], type: "text", inputmode: column.text ? "text" : "decimal", autocomplete: "off", spellcheck: "false",
      "aria-label": rows.length > 1 ? `${column.name}, row ${number + 1}` : undefined,
      oninput: () => { row[place] = input.value; },
    });
    input.addEventListener("paste", event => {
      const text = event.clipboardData?.getData("text") ?? "";
      if (/[\n\t]/.test(text.trim()) || (!column.text && /[,;]/.test(text.trim()))) {
        event.preventDefault();
        paste(text);
      }
    });
    return input;
  };
  const show = () => {
    if (rows.length === 1)
      fill(table, h("div", { class: "fields" }, ...columns.map((column, place) => h("div", {}, h("label", { for: `cell-0-${place}` }, column.name), field(rows[0], column, place, 0)))));
    else
      fill(table, h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Rows" }, h("table", {},
        h("thead", {}, h("tr", {}, ...columns.map(column => h("th", { scope: "col" }, column.name)))),
        h("tbody", {}, ...rows.slice(0, MOST_SHOWN).map((row, number) => h("tr", {}, ...columns.map((column, place) => h("td", {}, field(row, column, place, number)))))))),
        rows.length > MOST_SHOWN && h("p", { class: "hint" }, `and ${rows.length - MOST_SHOWN} more rows`));
  };
  const paste = (/** @type {string} */ text) => {
    said.textContent = "";
    try {
      const read = rowsFor(text, columns);
      if (!read.length) throw new Error("There are names and no rows below them.");
      if (read.length > MOST_ROWS) throw new Error(`At most ${MOST_ROWS} rows fit here; the API takes more.`);
      rows = read;
      area.value = "";
      show();
    } catch (error) {
      said.textContent = sentence(error);
    }
  };
  const area = h("textarea", { id: "csv", rows: "4", spellcheck: "false", placeholder: columns.slice(0, 6).map(one => one.name).join(",") });
  show();
  return {
    element: h("div", {}, table,
      h("p", {}, h("button", { type: "button", class: "quiet", onclick: () => { rows.push(empty()); show(); } }, "Add a row")),
      h("details", {}, h("summary", {}, "Paste CSV"), h("label", { for: "csv" }, "Rows, with or without a first line of names"), area,
        h("button", { type: "button", class: "quiet", onclick: () => paste(area.value) }, "Use these rows")),
      said),
    clear: () => { rows = [empty()]; said.textContent = ""; show(); },
    read: () => {
      const specs = [...new Set(columns.map(column => column.spec))];
      rows.forEach((row, number) => columns.forEach((column, place) => {
        if (!column.text && !isNumber(row[place].trim()))
          throw new Error(`${column.name}${rows.length > 1 ? `, row ${number + 1},` : ""} ${row[place].trim() ? `is to be a number, not "${row[place].slice(0, 40)}"` : "is empty"}.`);
      }));
      return specs.map(spec => {
        const own = columns.flatMap((column, place) => (column.spec === spec ? [place] : []));
        const flat = rows.flatMap(row => own.map(place => (isText(spec.datatype) ? row[place] : wholeOrNot(spec, row[place].trim()))));
        const shape = spec.shape?.length === 1 ? [rows.length] : [rows.length, own.length];
        return { name: spec.name, datatype: spec.datatype, shape, data: typed(spec, flat) };
      });
    },
  };
}

/** @param {Spec} spec @param {string} text */
const wholeOrNot = (spec, text) => (/^U?INT64$/.test(spec.datatype) && /^[+-]?\d+$/.test(text) ? BigInt(text) : Number(text));
