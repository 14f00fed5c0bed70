// CSV from a file, or pasted from a spreadsheet.

/** The kind of a column's values. @typedef {"number" | "truth" | "text"} Kind */

/**
 * Return the separator of a text: tabs if its first line has one, else semicolons, else commas.
 * Spreadsheets in countries with decimal commas write semicolons.
 * @param {string} text
 */
export function separatorOf(text) {
  const [first] = text.slice(0, MAX_ROW).replace(/"(?:[^"]|"")*"/g, "").split("\n", 1);
  return ["\t", ";"].find(mark => first.includes(mark)) ?? ",";
}

const MAX_ROW = 1 << 20; // characters

/**
 * Make a reader of CSV in pieces. Empty rows are left out, and fields may be quoted (RFC 4180).
 * Spaces around unquoted fields are ignored. Raises an Error for a row without an end.
 * @param {string} separator
 * @returns {(text: string, last?: boolean) => string[][]} Returns the rows that end in this piece.
 */
export function csvReader(separator) {
  /** @type {string[]} */
  let row = [];
  let cell = "", within = false, quoted = false, ending = false, long = 0;
  return (text, last = false) => {
    /** @type {string[][]} */
    const rows = [];
    const endCell = () => {
      row.push(quoted ? cell : cell.trim());
      [cell, quoted] = ["", false];
    };
    const endRow = () => {
      endCell();
      if (row.some(one => one !== "")) rows.push(row);
      [row, long] = [[], 0];
    };
    for (const mark of text) {
      if (++long > MAX_ROW) throw new Error("A row has more than a million characters. Is this a table, and are its quotes closed?");
      if (ending) { // a quote inside quotes: escaped if another follows, otherwise the last
        ending = false;
        if (mark === '"') { cell += mark; continue; }
        within = false;
      }
      if (within) {
        if (mark === '"') ending = true;
        else cell += mark;
      } else if (mark === '"' && !quoted && cell.trim() === "") { within = quoted = true; cell = ""; }
      else if (mark === separator) endCell();
      else if (mark === "\n") endRow();
      else if (!quoted || mark.trim() !== "") cell += mark;
    }
    if (last) endRow();
    return rows;
  };
}

/**
 * Return the cells of a text by row.
 * @param {string} text
 * @param {string} [separator]
 * @returns {string[][]}
 */
export const cells = (text, separator = separatorOf(text)) => csvReader(separator)(text, true);

/** Return a cell for a CSV with commas. @param {unknown} value */
export function csvCell(value) {
  const text = String(value);
  return /[",\r\n]|^\s|\s$/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
}

/**
 * Return true if a cell is a value of a column.
 * @param {Kind} kind
 * @param {string} cell
 * @param {boolean} [gaps] True if it may be empty.
 */
export function isValue(kind, cell, gaps = false) {
  if (kind === "text" || (gaps && cell.trim() === "")) return true;
  return kind === "truth" ? /^(true|false|0|1)$/i.test(cell.trim()) : cell.trim() !== "" && Number.isFinite(Number(cell));
}

/**
 * Decide from the first line how lines become rows. A first line with all names sets the order of columns.
 * A first line without any value is skipped. Raises an Error if it has only some of the names.
 * @param {string[]} first
 * @param {{name: string, kind: Kind}[]} columns
 * @param {string} separator
 * @returns {{isHead: boolean, how: string, width: number, rowOf: (line: string[], number: number) => string[]}}
 * `rowOf` raises an Error for a line with other columns.
 */
export function layoutOfLines(first, columns, separator) {
  const ended = first.length === columns.length + 1 && first[columns.length] === ""; // a trailing separator
  const cut = (/** @type {string[]} */ line) => (ended && line.length === columns.length + 1 && line[columns.length] === "" ? line.slice(0, -1) : line);
  const decimal = (/** @type {string} */ cell) => (separator === "," ? cell : cell.replace(/^([+-]?\d+),(\d+)$/, "$1.$2"));
  const head = cut(first), names = head.map(one => one.trim().toLowerCase());
  const places = columns.map(({ name }) => names.indexOf(name.toLowerCase()));
  const known = places.filter(place => place >= 0).length;
  const named = known === columns.length, isHead = named || hasNames(head.map(decimal), columns);
  if (isHead && known && !named)
    throw new Error(`The first line does not contain "${columns[places.indexOf(-1)].name}". It must name all columns in any order (${shortList(columns)}), or no column.`);
  return {
    isHead,
    width: head.length,
    how: named ? "by the names in the first line" : isHead ? "in the model's order; the first line was skipped as a header" : "in the model's order",
    rowOf: (line, number) => {
      const row = named ? places.map(place => line[place] ?? "") : cut(line);
      if (row.length !== columns.length)
        throw new Error(`Row ${number} has ${row.length} values, but the model expects ${columns.length}: ${shortList(columns)}.`);
      return row.map((cell, place) => (columns[place].kind === "number" ? decimal(cell) : cell));
    },
  };
}

/**
 * Return the rows of a text for named columns, with a summary. Raises an Error if they do not fit.
 * @param {string} text
 * @param {{name: string, kind: Kind}[]} columns
 * @returns {{rows: string[][], summary: string}}
 */
export function rowsFor(text, columns) {
  const separator = separatorOf(text);
  const lines = cells(text, separator);
  if (!lines.length) throw new Error("The text is empty.");
  const layout = layoutOfLines(lines[0], columns, separator);
  const rows = (layout.isHead ? lines.slice(1) : lines).map((line, number) => layout.rowOf(line, number + 1));
  if (!rows.length) throw new Error("There is a header, but no rows.");
  return { rows, summary: `${rows.length} ${rows.length > 1 ? "rows" : "row"}, ${layout.how}.` };
}

/** Return true if a line has words in all columns of numbers or booleans. @param {string[]} line @param {{kind: Kind}[]} columns */
function hasNames(line, columns) {
  const others = columns.map(({ kind }, place) => ({ kind, cell: line[place] ?? "" })).filter(one => one.kind !== "text");
  return others.length > 0 && others.every(({ kind, cell }) => cell.trim() !== "" && !isValue(kind, cell));
}

/** @param {{name: string}[]} columns */
const shortList = columns => `${columns.slice(0, 8).map(one => one.name).join(", ")}${columns.length > 8 ? ", …" : ""}`;
