// Inputs that are tables: fields for each column, and rows pasted as CSV.

import { isValue, rowsFor } from "./csv.js";
import { fill, h, sentence } from "./dom.js";
import { isFloat, isText, typed } from "./tensors.js";

/** @typedef {import("./tensors.js").Spec} Spec */

/**
 * A column: its input and its place in it. `gaps` is true if a cell may be empty.
 * @typedef {{name: string, spec: Spec, place: number, wide: number, kind: import("./csv.js").Kind, gaps: boolean}} Column
 */

const MAX_COLUMNS = 64, MAX_ROWS = 1000, SHOWN = 20;

/**
 * Return the columns of inputs that form a table, with one row for each row of the caller.
 * @param {Spec[]} specs
 * @param {string[]} names The feature names in the model's metadata, if any.
 * @returns {Column[] | null} Null if they form no table.
 */
export function columnsOf(specs, names) {
  /** @type {Column[]} */
  const columns = [];
  for (const spec of specs) {
    const shape = spec.shape;
    if (!spec.transportable || !shape || shape.length < 1 || shape.length > 2 || typeof shape[0] === "number") return null;
    const wide = shape.length === 1 ? 1 : shape[1];
    if (typeof wide !== "number" || wide < 1 || columns.length + wide > MAX_COLUMNS) return null;
    const kind = isText(spec.datatype) ? "text" : spec.datatype === "BOOL" ? "truth" : "number";
    for (let place = 0; place < wide; place++)
      columns.push({ name: wide === 1 ? spec.name : `${spec.name} ${place + 1}`, spec, place, wide, kind, gaps: isFloat(spec.datatype) || spec.missing !== undefined });
  }
  if (names.length === columns.length && new Set(names).size === names.length) names.forEach((name, place) => { columns[place].name = name; });
  return columns.length ? columns : null;
}

/**
 * Make a form for rows.
 * @param {Column[]} columns
 * @param {string[][]} example The initial rows.
 * @returns {import("./forms.js").Form}
 */
export function tableForm(columns, example) {
  const empty = () => columns.map(() => "");
  let rows = example.length ? example : [empty()];
  let first = 0; // the first row that is shown
  const table = h("div", { class: "rows" });
  const said = h("p", { class: "hint", role: "alert" });

  const field = (/** @type {number} */ number, /** @type {number} */ place) => {
    const column = columns[place], row = rows[number];
    const input = h("input", {
      id: `cell-${number}-${place}`, value: row[place], type: "text", inputmode: column.kind === "number" ? "decimal" : "text", autocomplete: "off", spellcheck: "false",
      "aria-label": rows.length > 1 ? `${column.name}, row ${number + 1}` : undefined,
      oninput: () => { row[place] = input.value; },
    });
    input.addEventListener("paste", event => {
      const text = (event.clipboardData?.getData("text") ?? "").trim();
      if (/[\n\t]/.test(text) || (column.kind !== "text" && /[,;]/.test(text) && !/^[+-]?\d+,\d+$/.test(text))) {
        event.preventDefault();
        paste(text);
      }
    });
    return input;
  };
  const remove = (/** @type {number} */ number) => {
    rows.splice(number, 1);
    show(number < rows.length ? number : number - 1);
    table.querySelector("button")?.focus();
  };
  const line = (/** @type {number} */ number) => h("tr", {}, h("th", { scope: "row" }, number + 1),
    ...columns.map((_, place) => h("td", {}, field(number, place))),
    h("td", {}, h("button", { type: "button", class: "quiet", "aria-label": `Remove row ${number + 1}`, onclick: () => remove(number) }, "✕")));
  const turn = (/** @type {string} */ label, /** @type {number} */ to) => h("button", { type: "button", class: "quiet", disabled: to < 0 || to >= rows.length, onclick: () => show(to) }, label);
  /** Show the page of rows that contains one. @param {number} number */
  const show = number => {
    first = Math.floor(number / SHOWN) * SHOWN;
    if (rows.length === 1)
      return fill(table, h("div", { class: "fields" }, ...columns.map((column, place) => h("div", {}, h("label", { for: `cell-0-${place}` }, column.name), field(0, place)))));
    const end = Math.min(first + SHOWN, rows.length);
    fill(table, h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Rows" }, h("table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Row"), ...columns.map(column => h("th", { scope: "col" }, column.name)), h("td", {}))),
      h("tbody", {}, ...Array.from({ length: end - first }, (_, place) => line(first + place))))),
      rows.length > SHOWN && h("p", {}, turn("Earlier rows", first - SHOWN), ` ${first + 1} to ${end} of ${rows.length} `, turn("Later rows", first + SHOWN)));
  };
  const add = () => {
    if (rows.length >= MAX_ROWS) { said.textContent = `This form holds at most ${MAX_ROWS} rows; the API accepts more.`; return; }
    rows.push(empty());
    show(rows.length - 1);
    focusOn(rows.length - 1, 0);
  };
  const focusOn = (/** @type {number} */ number, /** @type {number} */ place) => document.getElementById(`cell-${number}-${place}`)?.focus();
  const paste = (/** @type {string} */ text) => {
    try {
      const read = rowsFor(text, columns);
      if (read.rows.length > MAX_ROWS) throw new Error(`This form holds at most ${MAX_ROWS} rows; the API accepts more.`);
      rows = read.rows;
      area.value = "";
      said.textContent = read.summary;
      show(0);
      return true;
    } catch (error) {
      said.textContent = sentence(error);
      return false;
    }
  };
  const area = h("textarea", { id: "csv", rows: "4", spellcheck: "false", placeholder: columns.slice(0, 6).map(one => one.name).join(",") });
  show(0);
  return {
    element: h("div", {}, table,
      h("p", {}, h("button", { type: "button", class: "quiet", onclick: add }, "Add a row")),
      h("details", {}, h("summary", {}, "Paste CSV"), h("label", { for: "csv" }, "Rows, with or without a header"), area,
        h("button", { type: "button", class: "quiet", onclick: () => paste(area.value) }, "Use these rows")),
      said),
    clear: () => { rows = [empty()]; said.textContent = ""; show(0); },
    read: () => {
      if (area.value.trim() && !paste(area.value)) throw new Error(said.textContent ?? "");
      if (rows.every(row => row.every(cell => !cell.trim()))) { focusOn(first, 0); throw new Error("Fill in a row first."); }
      for (const [number, row] of rows.entries()) {
        const place = wrongCell(columns, row);
        if (place < 0) continue;
        if (number < first || number >= first + SHOWN) show(number);
        focusOn(number, place);
        throw new Error(`${columns[place].name}${rows.length > 1 ? `, row ${number + 1},` : ""} ${complaint(columns[place], row[place])}.`);
      }
      return tensorsOf(columns, rows);
    },
    columns,
  };
}

/** Return the place of the first invalid cell, or -1. @param {Column[]} columns @param {string[]} row */
export const wrongCell = (columns, row) => columns.findIndex(({ kind, gaps }, at) => !isValue(kind, row[at], gaps));

/** Return the inputs for rows. @param {Column[]} columns @param {string[][]} rows @returns {import("./tensors.js").Tensor[]} */
export function tensorsOf(columns, rows) {
  return [...new Set(columns.map(column => column.spec))].map(spec => {
    const own = columns.flatMap((column, place) => (column.spec === spec ? [place] : []));
    const flat = rows.flatMap(row => own.map(place => valueOf(columns[place], row[place])));
    const shape = spec.shape?.length === 1 ? [rows.length] : [rows.length, own.length];
    return { name: spec.name, datatype: spec.datatype, shape, data: typed(spec, flat) };
  });
}

/** Describe the fault of a cell. @param {Column} column @param {string} cell */
export function complaint({ kind }, cell) {
  cell = cell.trim();
  if (!cell) return "is empty";
  const wanted = kind === "truth" ? "true or false" : "a number";
  return `must be ${wanted}, not "${cell.slice(0, 40)}"${/^[+-]?\d+,\d+$/.test(cell) ? " (decimals are written with a point)" : ""}`;
}

/** @param {Column} column @param {string} cell @returns {number | bigint | string} */
function valueOf({ kind, spec, gaps }, cell) {
  const text = cell.trim();
  if (!text && gaps) return spec.missing ?? NaN;
  if (kind === "text") return cell;
  if (kind === "truth") return Number(/^(true|1)$/i.test(text));
  return /^U?INT64$/.test(spec.datatype) && /^[+-]?\d+$/.test(text) ? BigInt(text.replace(/^\+/, "")) : Number(text);
}
