// A whole CSV file. Its rows are sent in batches, and returned with their answers.

import { Refused } from "./api.js";
import { csvCell, csvReader, layoutOfLines, separatorOf } from "./csv.js";
import { fill, h, sentence } from "./dom.js";
import { namesOf, ranking } from "./labels.js";
import { complaint, tensorsOf, wrongCell } from "./tables.js";

/** @typedef {import("./tables.js").Column} Column */
/** @typedef {import("./tensors.js").Tensor} Tensor */
/** A function that answers rows, with a signal to stop. @typedef {(tensors: Tensor[], signal: AbortSignal) => Promise<Tensor[]>} Ask */

const PIECE = 1 << 18; // bytes that are read at once, in a few milliseconds
const MAX_AT_ONCE = 500, MAX_TEXT_AT_ONCE = 1 << 18; // rows and characters of a request
const MAX_WIDE = 64; // values of a row that become columns
const MAX_SHOWN = 20, MAX_REFUSED = 1000; // invalid rows
const MAX_WAITS = 5, WAIT_MS = 1000; // retries when the server is overloaded

/** A row of a file: its number from 1, its cells, and those of the model's columns, or its fault. @typedef {{number: number, line: string[], row: string[], wrong: string}} Line */

/**
 * Make a box for a file.
 * @param {Column[]} columns
 * @param {string} name The model's name.
 * @param {any} version The server's description.
 * @param {Ask} ask
 * @param {AbortSignal} left Aborted when the page is left.
 */
export function tableFileBox(columns, name, version, ask, left) {
  let running = new AbortController(), url = "";
  const said = h("p", { class: "hint", role: "status" }), bar = h("progress", { max: "1", value: "0", hidden: true, "aria-label": "Read" });
  const wrong = h("ul", { class: "differences" }), saved = h("p", {});
  const stop = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => running.abort() }, "Cancel");
  const forget = () => { if (url) URL.revokeObjectURL(url); url = ""; fill(saved); };
  left.addEventListener("abort", () => { running.abort(); forget(); });
  /** @param {Blob & {name?: string}} file */
  const take = async file => {
    running.abort();
    const mine = running = new AbortController();
    forget();
    fill(wrong);
    bar.hidden = stop.hidden = false;
    bar.value = 0;
    said.textContent = "Reading…";
    const run = new FileRun(columns, version, ask, mine.signal, (rows, refused, share) => {
      if (mine !== running) return;
      bar.value = share;
      said.textContent = `${count(rows, "row")} answered${refused ? `, ${refused} not` : ""}`;
    });
    let end = "";
    try {
      await run.read(file);
    } catch (error) {
      end = mine.signal.aborted ? "Cancelled." : sentence(error);
    }
    if (mine !== running || left.aborted) return;
    bar.hidden = stop.hidden = true;
    said.textContent = `${count(run.answered, "row")} answered${run.refused ? `, ${count(run.refused, "row")} not` : ""}${run.how ? `, ${run.how}` : ""}.${end && ` ${end}`}`;
    fill(wrong, ...run.problems.map(one => h("li", {}, one)), run.refused > run.problems.length && h("li", {}, "… and more, in the column \"error\""));
    if (!run.answered && !run.refused) return;
    url = URL.createObjectURL(run.result());
    fill(saved, h("a", { href: url, download: `${(file.name ?? name).replace(/\.\w+$/, "")}-answers.csv` }, "Download the rows with answers"));
  };
  const field = h("input", { type: "file", id: "csv-file", accept: ".csv,.tsv,.txt,text/csv", onchange: () => { const file = field.files?.[0]; if (file) take(file); } });
  const element = h("details", { class: "file" }, h("summary", {}, "A whole CSV file"),
    h("p", {}, h("label", { for: "csv-file" }, "Choose a file, drop it here, or paste rows: "), " ", field), bar, " ", stop, said, wrong, saved);
  element.addEventListener("dragover", event => { event.preventDefault(); element.classList.add("over"); });
  element.addEventListener("dragleave", () => element.classList.remove("over"));
  element.addEventListener("drop", event => {
    event.preventDefault();
    element.classList.remove("over");
    const file = event.dataTransfer?.files[0];
    if (file) take(file);
  });
  element.addEventListener("paste", event => {
    const text = event.clipboardData?.getData("text") ?? "";
    if (text.trim()) { event.preventDefault(); take(new Blob([text])); }
  });
  return element;
}

/** The processing of a file. */
export class FileRun {
  /**
   * @param {Column[]} columns @param {any} version @param {Ask} ask @param {AbortSignal} signal
   * @param {(answered: number, refused: number, share: number) => void} report Reports the progress.
   */
  constructor(columns, version, ask, signal, report) {
    this.columns = columns; this.names = namesOf(version); this.ask = ask; this.signal = signal; this.report = report;
    /** @type {string[]} The faults of the first unanswered rows. */
    this.problems = [];
    this.answered = 0;
    this.refused = 0;
    this.how = "";
    /** @type {string[]} Names of the file's columns. */
    this.own = [];
    /** @type {string[] | null} Names of the answers' columns, after the first answer. */
    this.answers = null;
    /** @type {BlobPart[]} */
    this.parts = [];
    /** @type {Line[]} Rows that wait for answers. */
    this.waiting = [];
    /** @type {{cells: string[], values: unknown[] | undefined, wrong: string}[]} Rows refused before the first answer. */
    this.held = [];
    this.halved = 0;
  }

  /** Read and answer a file. Raises an Error if it cannot be read or the server answers no row. @param {Blob} file */
  async read(file) {
    const decoder = new TextDecoder("utf-8", { fatal: true });
    /** @type {ReturnType<typeof csvReader> | null} */
    let reader = null;
    /** @type {ReturnType<typeof layoutOfLines> | null} */
    let layout = null;
    let number = 0, separator = ",";
    for (let place = 0, last = false; !last; place += PIECE) {
      const bytes = await file.slice(place, place + PIECE).arrayBuffer();
      this.signal.throwIfAborted();
      last = place + PIECE >= file.size;
      const text = decode(decoder, bytes, last);
      if (!reader) reader = csvReader(separator = separatorOf(text));
      for (const line of reader(text, last)) {
        if (!layout) {
          layout = layoutOfLines(line, this.columns, separator);
          this.how = layout.how;
          this.own = layout.isHead ? line : line.map((_, at) => this.columns[at]?.name ?? `column ${at + 1}`);
          if (!layout.isHead) layout.rowOf(line, 1); // otherwise all other rows would also fail
          else if (!layout.how.startsWith("by") && line.length !== this.columns.length) layout.rowOf(line, 0);
          if (layout.isHead) continue;
        }
        this.waiting.push(this.lineOf(layout, line, ++number));
        if (this.isFull()) await this.flush(Math.min(1, place / file.size));
      }
    }
    if (!number) throw new Error("The file has no rows.");
    await this.flush(1);
  }

  /** @param {ReturnType<typeof layoutOfLines>} layout @param {string[]} line @param {number} number @returns {Line} */
  lineOf(layout, line, number) {
    try {
      const row = layout.rowOf(line, number), place = wrongCell(this.columns, row);
      return { number, line, row, wrong: place < 0 ? "" : `${this.columns[place].name} ${complaint(this.columns[place], row[place])}` };
    } catch (error) {
      return { number, line, row: [], wrong: sentence(error) };
    }
  }

  isFull() {
    if (this.waiting.length >= MAX_AT_ONCE) return true;
    return this.waiting.length % 16 === 0 && this.waiting.reduce((sum, { line }) => sum + line.reduce((all, cell) => all + cell.length, 0), 0) > MAX_TEXT_AT_ONCE;
  }

  /** Answer the waiting rows and write all results. @param {number} share Share of the file that was read. */
  async flush(share) {
    const lines = this.waiting;
    this.waiting = [];
    /** @type {Map<Line, unknown[]>} */
    const found = new Map();
    await this.answer(lines.filter(one => !one.wrong), found);
    const wide = this.own.length, text = lines.map(one => {
      const cells = Array.from({ length: wide }, (_, at) => one.line[at] ?? ""), values = found.get(one);
      if (one.wrong) {
        this.refused++;
        if (this.problems.length < MAX_SHOWN) this.problems.push(`Row ${one.number}: ${one.wrong}`);
      } else this.answered++;
      return { cells, values, wrong: one.wrong };
    });
    this.held.push(...text);
    if (this.answers) { // otherwise the number of cells in an answer is not known yet
      const none = this.answers.map(() => "");
      this.parts.push(new Blob([this.held.map(({ cells, values, wrong }) => csvLine([...cells, ...(values ?? none), wrong])).join("")]));
      this.held = [];
    }
    this.report(this.answered, this.refused, share);
    if (this.refused > MAX_REFUSED && this.refused > this.answered)
      throw new Error(`Stopped: ${this.refused} rows are invalid.`);
  }

  /** Answer rows. If the server refuses them, try halves down to a single row. @param {Line[]} lines @param {Map<Line, unknown[]>} found */
  async answer(lines, found) {
    if (!lines.length) return;
    let tensors;
    try {
      tensors = tensorsOf(this.columns, lines.map(one => one.row));
      const outputs = await this.patiently(tensors);
      const { names, values } = answerColumns(outputs, lines.length, this.names);
      this.answers ??= names;
      lines.forEach((one, at) => found.set(one, values[at]));
    } catch (error) {
      const isRows = !tensors || (error instanceof Refused && error.status === 400);
      if (!isRows || this.signal.aborted) throw error;
      if (lines.length === 1) { lines[0].wrong = sentence(error).replace(/ row 0\b/, ""); return; }
      if (this.halved++ > MAX_REFUSED) throw error;
      const half = lines.length >> 1;
      await this.answer(lines.slice(0, half), found);
      await this.answer(lines.slice(half), found);
    }
  }

  /** @param {Tensor[]} tensors */
  async patiently(tensors) {
    for (let waits = 0; ; waits++) {
      try {
        return await this.ask(tensors, this.signal);
      } catch (error) {
        if (!(error instanceof Refused) || ![429, 503].includes(error.status) || waits >= MAX_WAITS) throw error;
        await new Promise(resolve => { setTimeout(resolve, WAIT_MS); });
        this.signal.throwIfAborted();
      }
    }
  }

  /** Return the file with the answers. */
  result() {
    const head = csvLine([...this.own, ...(this.answers ?? []), "error"]);
    const rest = this.held.map(({ cells, wrong }) => csvLine([...cells, wrong])).join("");
    return new Blob([head, ...this.parts, rest], { type: "text/csv" });
  }
}

/** @param {unknown[]} values */
const csvLine = values => `${values.map(csvCell).join(",")}\r\n`;

/** @param {TextDecoder} decoder @param {ArrayBuffer} bytes @param {boolean} last */
function decode(decoder, bytes, last) {
  let text;
  try {
    text = decoder.decode(bytes, { stream: !last });
  } catch {
    throw new Error("The file is not UTF-8 text. Save it as \"CSV UTF-8\".");
  }
  if (text.includes("\0")) throw new Error("The file is not CSV: it contains zero bytes.");
  return text;
}

/**
 * Return the answers of each row and their names: an output's value, or one for each of its columns.
 * @param {Tensor[]} outputs @param {number} rows @param {string[]} names Names of the model's classes.
 * @returns {{names: string[], values: unknown[][]}}
 */
export function answerColumns(outputs, rows, names) {
  const called = [], values = Array.from({ length: rows }, () => /** @type {unknown[]} */ ([]));
  const ranked = ranking(outputs, names);
  if (ranked?.rows.length === rows && names.length && !outputs.some(one => one.name === "label")) {
    called.push("label");
    ranked.rows.forEach(([best], row) => values[row].push(best.name));
  }
  for (const { name, shape, data } of outputs) {
    const wide = data.length / rows;
    if (shape[0] !== rows || !Number.isInteger(wide) || wide > MAX_WIDE) continue;
    for (let at = 0; at < wide; at++) {
      called.push(wide === 1 ? name : `${name} ${names.length === wide ? names[at] : at + 1}`);
      values.forEach((row, number) => row.push(data[number * wide + at]));
    }
  }
  return { names: called, values };
}

/** @param {number} number @param {string} word */
const count = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
