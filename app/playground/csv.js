// CSV as people paste it: from a file, or from the cells of a spreadsheet.

/**
 * The cells of a text, by row. Fields are parted by commas, semicolons or tabs, whichever the first
 * line has most of, and may be quoted (RFC 4180).
 * @param {string} text
 * @returns {string[][]}
 */
export function cells(text) {
  const [first] = text.split(/\r?\n/, 1);
  const count = (/** @type {string} */ mark) => first.split(mark).length;
  const separator = ["\t", ";", ","].reduce((best, mark) => (count(mark) > count(best) ? mark : best), ",");
  /** @type {string[][]} */
  const rows = [];
  /** @type {string[]} */
  let row = [];
  let cell = "", quoted = false;
  const endRow = () => {
    row.push(cell.trim());
    if (row.some(one => one !== "")) rows.push(row);
    [row, cell] = [[], ""];
  };
  for (let place = 0; place < text.length; place++) {
    const mark = text[place];
    if (quoted) {
      if (mark !== '"') cell += mark;
      else if (text[place + 1] === '"') { cell += mark; place++; }
      else quoted = false;
    } else if (mark === '"' && cell.trim() === "") { quoted = true; cell = ""; }
    else if (mark === separator) { row.push(cell.trim()); cell = ""; }
    else if (mark === "\n") endRow();
    else cell += mark;
  }
  endRow();
  return rows;
}

/** Whether a cell is a number. @param {string} cell */
export const isNumber = cell => cell !== "" && Number.isFinite(Number(cell));

/**
 * The rows of a text for columns of these names; a first row of names says which is which.
 * Raises an Error where they do not fit.
 * @param {string} text
 * @param {{name: string, text: boolean}[]} columns
 * @returns {string[][]}
 */
export function rowsFor(text, columns) {
  const rows = cells(text);
  if (!rows.length) throw new Error("There is nothing to paste.");
  const [head] = rows;
  const names = head.map(one => one.toLowerCase());
  const places = columns.map(({ name }) => names.indexOf(name.toLowerCase()));
  if (places.every(place => place >= 0)) return rows.slice(1).map(row => places.map(place => row[place] ?? ""));
  const hasNames = columns.some(({ text: isText }, place) => !isText && head[place] !== undefined && !isNumber(head[place]));
  const values = hasNames ? rows.slice(1) : rows;
  const wrong = values.findIndex(row => row.length !== columns.length);
  if (wrong >= 0)
    throw new Error(`Row ${wrong + 1} has ${values[wrong].length} values, and the model takes ${columns.length}: ${columns.slice(0, 8).map(one => one.name).join(", ")}${columns.length > 8 ? ", …" : ""}.`);
  return values;
}
