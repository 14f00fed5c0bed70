// CSV as people paste it: from a file, or from the cells of a spreadsheet.

/** What a column takes. @typedef {"number" | "truth" | "text"} Kind */

/**
 * What parts the fields of a text: tabs where its first line has one, else semicolons, else commas.
 * Spreadsheets of countries with decimal commas write semicolons.
 * @param {string} text
 */
export function separatorOf(text) {
  const [first] = text.replace(/"(?:[^"]|"")*"/g, "").split("\n", 1);
  return ["\t", ";"].find(mark => first.includes(mark)) ?? ",";
}

/**
 * The cells of a text, by row; rows in which there is nothing are left out. Fields may be quoted
 * (RFC 4180); around those that are not, spaces do not count.
 * @param {string} text
 * @param {string} [separator]
 * @returns {string[][]}
 */
export function cells(text, separator = separatorOf(text)) {
  /** @type {string[][]} */
  const rows = [];
  /** @type {string[]} */
  let row = [];
  let cell = "", within = false, quoted = false;
  const endCell = () => {
    row.push(quoted ? cell : cell.trim());
    [cell, quoted] = ["", false];
  };
  const endRow = () => {
    endCell();
    if (row.some(one => one !== "")) rows.push(row);
    row = [];
  };
  for (let place = 0; place < text.length; place++) {
    const mark = text[place];
    if (within) {
      if (mark !== '"') cell += mark;
      else if (text[place + 1] === '"') { cell += mark; place++; }
      else within = false;
    } else if (mark === '"' && cell.trim() === "" && !quoted) { within = quoted = true; cell = ""; }
    else if (mark === separator) endCell();
    else if (mark === "\n") endRow();
    else if (!quoted || mark.trim() !== "") cell += mark;
  }
  endRow();
  return rows;
}

/** Whether a cell says a value of a column. @param {Kind} kind @param {string} cell */
export function isValue(kind, cell) {
  if (kind === "text") return true;
  return kind === "truth" ? /^(true|false|0|1)$/i.test(cell.trim()) : cell.trim() !== "" && Number.isFinite(Number(cell));
}

/**
 * The rows of a text for columns of these names, and how it was read. A first line that has all
 * names says which is which; one without any value of a column is passed over. Raises an Error where
 * they do not fit.
 * @param {string} text
 * @param {{name: string, kind: Kind}[]} columns
 * @returns {{rows: string[][], said: string}}
 */
export function rowsFor(text, columns) {
  const separator = separatorOf(text);
  const lines = cells(text, separator);
  if (!lines.length) throw new Error("There is nothing to paste.");
  const ended = lines.every(line => line.length === columns.length + 1 && line[columns.length] === ""); // by a separator
  const rows = ended ? lines.map(line => line.slice(0, -1)) : lines;
  const decimal = (/** @type {string} */ cell) => (separator === "," ? cell : cell.replace(/^([+-]?\d+),(\d+)$/, "$1.$2"));
  const [head] = rows;
  const names = head.map(one => one.trim().toLowerCase());
  const places = columns.map(({ name }) => names.indexOf(name.toLowerCase()));
  const known = places.filter(place => place >= 0).length;
  const told = known === columns.length, isHead = told || hasNames(head.map(decimal), columns);
  if (isHead && known && !told)
    throw new Error(`The first line has no "${columns[places.indexOf(-1)].name}". Name all columns there, in any order (${shortList(columns)}), or none.`);
  const values = (isHead ? rows.slice(1) : rows).map(row => (told ? places.map(place => row[place] ?? "") : row));
  const wrong = values.findIndex(row => row.length !== columns.length);
  if (wrong >= 0)
    throw new Error(`Row ${wrong + 1} has ${values[wrong].length} values, and the model takes ${columns.length}: ${shortList(columns)}.`);
  if (!values.length) throw new Error("There are names and no rows below them.");
  const how = told ? "by the names in the first line" : isHead ? "in the model's order; the first line was passed over as names" : "in the model's order";
  return {
    rows: values.map(row => row.map((cell, place) => (columns[place].kind === "number" ? decimal(cell) : cell))),
    said: `${values.length} ${values.length > 1 ? "rows" : "row"}, ${how}.`,
  };
}

/** Whether a line has words wherever the columns take none. @param {string[]} line @param {{kind: Kind}[]} columns */
function hasNames(line, columns) {
  const others = columns.map(({ kind }, place) => ({ kind, cell: line[place] ?? "" })).filter(one => one.kind !== "text");
  return others.length > 0 && others.every(({ kind, cell }) => cell.trim() !== "" && !isValue(kind, cell));
}

/** @param {{name: string}[]} columns */
const shortList = columns => `${columns.slice(0, 8).map(one => one.name).join(", ")}${columns.length > 8 ? ", …" : ""}`;
