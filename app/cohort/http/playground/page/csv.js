// CSV as people paste it: from a file, or from the cells of a spreadsheet.

/** What a column takes. @typedef {"number" | "truth" | "text"} Kind */

/**
 * What parts the fields of a text: tabs where its first line has one, else semicolons, else commas.
 * Spreadsheets of countries with decimal commas write semicolons.
 * @param {string} text
 */
export function separatorOf(text) {
  const [first] = text.slice(0, LONGEST_ROW).replace(/"(?:[^"]|"")*"/g, "").split("\n", 1);
  return ["\t", ";"].find(mark => first.includes(mark)) ?? ",";
}

const LONGEST_ROW = 1 << 20; // characters

/**
 * Reads CSV piece by piece. Rows in which there is nothing are left out; fields may be quoted (RFC 4180);
 * around those that are not, spaces do not count. Raises an Error for a row that does not end.
 * @param {string} separator
 * @returns {(text: string, last?: boolean) => string[][]} The rows that end in a piece.
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
      if (++long > LONGEST_ROW) throw new Error("A row has more than a million characters: is this a table, and are its quotes closed?");
      if (ending) { // a quote within quotes, of which there are two or which is the last
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
 * The cells of a text, by row.
 * @param {string} text
 * @param {string} [separator]
 * @returns {string[][]}
 */
export const cells = (text, separator = separatorOf(text)) => csvReader(separator)(text, true);

/** A cell for a CSV with commas. @param {unknown} value */
export function csvCell(value) {
  const text = String(value);
  return /[",\r\n]|^\s|\s$/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
}

/** Whether a cell says a value of a column. @param {Kind} kind @param {string} cell @param {boolean} [gaps] Whether an empty one does. */
export function isValue(kind, cell, gaps = false) {
  if (kind === "text" || (gaps && cell.trim() === "")) return true;
  return kind === "truth" ? /^(true|false|0|1)$/i.test(cell.trim()) : cell.trim() !== "" && Number.isFinite(Number(cell));
}

/**
 * How lines of a table are rows of columns, as the first line tells. One that has all names says which is
 * which; one without any value of a column is passed over. Raises an Error where it has some of the names.
 * @param {string[]} first
 * @param {{name: string, kind: Kind}[]} columns
 * @param {string} separator
 * @returns {{isHead: boolean, how: string, width: number, rowOf: (line: string[], number: number) => string[]}}
 * `rowOf` raises an Error for a line that has other columns.
 */
export function layoutOfLines(first, columns, separator) {
  const ended = first.length === columns.length + 1 && first[columns.length] === ""; // by a separator
  const cut = (/** @type {string[]} */ line) => (ended && line.length === columns.length + 1 && line[columns.length] === "" ? line.slice(0, -1) : line);
  const decimal = (/** @type {string} */ cell) => (separator === "," ? cell : cell.replace(/^([+-]?\d+),(\d+)$/, "$1.$2"));
  const head = cut(first), names = head.map(one => one.trim().toLowerCase());
  const places = columns.map(({ name }) => names.indexOf(name.toLowerCase()));
  const known = places.filter(place => place >= 0).length;
  const told = known === columns.length, isHead = told || hasNames(head.map(decimal), columns);
  if (isHead && known && !told)
    throw new Error(`The first line has no "${columns[places.indexOf(-1)].name}". Name all columns there, in any order (${shortList(columns)}), or none.`);
  return {
    isHead,
    width: head.length,
    how: told ? "by the names in the first line" : isHead ? "in the model's order; the first line was passed over as names" : "in the model's order",
    rowOf: (line, number) => {
      const row = told ? places.map(place => line[place] ?? "") : cut(line);
      if (row.length !== columns.length)
        throw new Error(`Row ${number} has ${row.length} values, and the model takes ${columns.length}: ${shortList(columns)}.`);
      return row.map((cell, place) => (columns[place].kind === "number" ? decimal(cell) : cell));
    },
  };
}

/**
 * The rows of a text for columns of these names, and how it was read. Raises an Error where they do not fit.
 * @param {string} text
 * @param {{name: string, kind: Kind}[]} columns
 * @returns {{rows: string[][], said: string}}
 */
export function rowsFor(text, columns) {
  const separator = separatorOf(text);
  const lines = cells(text, separator);
  if (!lines.length) throw new Error("There is nothing to paste.");
  const layout = layoutOfLines(lines[0], columns, separator);
  const rows = (layout.isHead ? lines.slice(1) : lines).map((line, number) => layout.rowOf(line, number + 1));
  if (!rows.length) throw new Error("There are names and no rows below them.");
  return { rows, said: `${rows.length} ${rows.length > 1 ? "rows" : "row"}, ${layout.how}.` };
}

/** Whether a line has words wherever the columns take none. @param {string[]} line @param {{kind: Kind}[]} columns */
function hasNames(line, columns) {
  const others = columns.map(({ kind }, place) => ({ kind, cell: line[place] ?? "" })).filter(one => one.kind !== "text");
  return others.length > 0 && others.every(({ kind, cell }) => cell.trim() !== "" && !isValue(kind, cell));
}

/** @param {{name: string}[]} columns */
const shortList = columns => `${columns.slice(0, 8).map(one => one.name).join(", ")}${columns.length > 8 ? ", …" : ""}`;
