// Answers: the label, bars, times and the received JSON.

import { duration, h, readable } from "./dom.js";
import { inWords, percent, ranking, shortValue } from "./labels.js";

/** @typedef {import("./tensors.js").Tensor} Tensor */

/**
 * An answer. `note` explains how it was computed.
 * @typedef {{title: string, note?: string, outputs: Tensor[], names: string[], raw: string, times: Times}} Answer
 */

/**
 * Seconds. `total` is the time that the visitor waited; the others are null if not known.
 * @typedef {{total: number, queue: number | null, run: number | null, here?: boolean}} Times
 */

const MAX_BARS = 10, MAX_VALUES = 200, MAX_ROWS = 20, MAX_RAW = 20_000;

/** Return the first line, which screen readers announce. It begins with the label. @param {Answer} answer */
export function headline({ outputs, names }) {
  const { label, detail } = inWords(outputs, names);
  const rows = outputs[0]?.shape[0] ?? 1;
  return [h("strong", {}, label), " ", detail, rows > 1 && outputs[0].shape.length <= 2 ? ` · first of ${rows} rows` : ""];
}

/** Return the rest of an answer. @param {Answer} answer */
export function details({ outputs, names, raw, times }) {
  const ranked = ranking(outputs, names);
  return [
    ranked && (ranked.rows.length === 1 ? bars(ranked.rows[0], ranked.probabilities) : labelTable(ranked)),
    ...outputs.filter(one => !ranked || one.name !== ranked.output).map(values),
    timing(times),
    h("details", {}, h("summary", {}, "Raw JSON"), h("pre", { tabindex: "0" }, raw.length > MAX_RAW ? `${raw.slice(0, MAX_RAW)}… (${readable(raw.length)} characters)` : raw)),
  ];
}

/** Show scores as bars. @param {{name: string, score: number}[]} row @param {boolean} probabilities */
function bars(row, probabilities) {
  const most = Math.max(...row.map(one => Math.abs(one.score)), 1e-12);
  return h("ol", { class: "bars" }, ...row.slice(0, MAX_BARS).map(({ name, score }) => {
    const bar = h("span", { class: "bar" });
    bar.style.width = `${Math.max(0, probabilities ? score : score / most) * 100}%`;
    return h("li", {}, h("span", { class: "name" }, name), h("span", { class: "track" }, bar), h("span", { class: "value" }, probabilities ? percent(score) : readable(score)));
  }), row.length > MAX_BARS && h("li", { class: "more" }, `and ${row.length - MAX_BARS} more`));
}

/** Show the best class of each row. @param {import("./labels.js").Ranking} ranked */
function labelTable({ rows, probabilities }) {
  return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Rows of the answer" }, h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Row"), h("th", { scope: "col" }, "Class"), h("th", { scope: "col" }, probabilities ? "Probability" : "Score"))),
    h("tbody", {}, ...rows.slice(0, MAX_ROWS).map(([best], row) => h("tr", {}, h("td", {}, row + 1), h("td", {}, best.name), h("td", {}, probabilities ? percent(best.score) : readable(best.score)))))),
    rows.length > MAX_ROWS && h("p", { class: "hint" }, `and ${rows.length - MAX_ROWS} more rows`));
}

/** Show the values of an output. @param {Tensor} output */
function values({ name, datatype, shape, data }) {
  const shown = Array.from({ length: Math.min(data.length, MAX_VALUES) }, (_, place) => shortValue(data[place]));
  return h("p", { class: "values" }, h("b", {}, name), h("span", { class: "hint" }, ` ${datatype} [${shape.join(", ")}]`), h("br"),
    h("samp", {}, shown.join(", "), data.length > MAX_VALUES ? ` … and ${readable(data.length - MAX_VALUES)} more` : ""));
}

/** Show the time as a bar in three parts. @param {Times} times */
function timing({ total, queue, run, here }) {
  if (here) return h("p", { class: "times" }, `${duration(total)} in this browser`);
  if (queue === null || run === null) return h("p", { class: "times" }, duration(total));
  const parts = { network: Math.max(0, total - queue - run), queue, run };
  const bar = h("span", { class: "split", "aria-hidden": "true" }, ...Object.entries(parts).map(([name, seconds]) => {
    const part = h("span", { class: name });
    part.style.flexGrow = String(seconds * 1e6); // a total below 1 would not fill the bar
    return part;
  }));
  return h("div", { class: "times" }, bar, h("p", {}, `${duration(total)}: network and browser ${duration(parts.network)}, queue ${duration(queue)}, run ${duration(run)}`));
}

/**
 * Describe in words how far two answers to the same input differ.
 * @param {Answer} one
 * @param {Answer} other
 */
export function difference(one, other) {
  const labels = [one, other].map(({ outputs, names }) => inWords(outputs, names).label);
  const lines = [];
  let differs = false;
  const warn = (/** @type {string} */ line) => { differs = true; lines.push(line); };
  const ranked = [one, other].map(({ outputs, names }) => ranking(outputs, names));
  if (ranked[0] && ranked[1]) {
    const [first, second] = ranked.map(found => /** @type {import("./labels.js").Ranking} */ (found).rows.map(row => row[0].name));
    const differing = first.filter((name, row) => name !== second[row]).length;
    if (first.length !== second.length) warn("The answers have different numbers of rows.");
    else if (differing) warn(first.length > 1 ? `Another class in ${differing} of ${first.length} rows.` : `Another class: ${labels[0]} against ${labels[1]}.`);
    else lines.push(first.length > 1 ? `The same class in all ${first.length} rows.` : `The same class: ${labels[0]}.`);
  }
  for (const output of one.outputs) {
    const same = other.outputs.find(found => found.name === output.name);
    if (!same) warn(`Only one has the output ${output.name}.`);
    else if (same.data.length !== output.data.length) warn(`${output.name} is [${output.shape.join(", ")}] against [${same.shape.join(", ")}].`);
    else {
      const { most, at, texts } = furthest(output, same);
      if (texts) warn(`${output.name}: ${texts} of ${output.data.length} values differ.`);
      else lines.push(most ? `${output.name} differs by at most ${most.toPrecision(2)}, at ${position(at, output.shape, one.names)}.` : `${output.name} is equal.`);
      if (most === Infinity) differs = true;
    }
  }
  return { lines, differs };
}

/** Compare values of single precision in that precision, because JSON has their shortest form. @param {Tensor} first @param {Tensor} second */
function furthest(first, second) {
  const single = first.datatype === "FP32" && second.datatype === "FP32";
  const [one, other] = [first, second].map(({ data }) => (single ? Float32Array.from(/** @type {ArrayLike<any>} */ (data), Number) : /** @type {ArrayLike<any>} */ (data)));
  let [most, at, texts] = [0, 0, 0];
  for (let place = 0; place < one.length; place++) {
    if (typeof one[place] === "string") { if (one[place] !== other[place]) texts++; continue; }
    const apart = distance(one[place], other[place]);
    if (apart > most) [most, at] = [apart, place];
  }
  return { most, at, texts };
}

/** @param {number | bigint} one @param {number | bigint} other */
function distance(one, other) {
  if (typeof one === "bigint" && typeof other === "bigint") return Math.abs(Number(one - other));
  const apart = Math.abs(Number(one) - Number(other));
  if (!Number.isNaN(apart)) return apart;
  return Object.is(Number(one), Number(other)) ? 0 : Infinity; // NaN is infinitely far from any number
}

/** @param {number} at @param {number[]} shape @param {string[]} names */
function position(at, shape, names) {
  const places = shape.map((_, axis) => Math.floor(at / shape.slice(axis + 1).reduce((product, size) => product * size, 1)) % shape[axis]);
  if (shape.length === 2 && names.length === shape[1]) return shape[0] > 1 ? `${names[places[1]]} of row ${places[0] + 1}` : names[places[1]];
  return `[${places.join(", ")}]`;
}
