// Outputs in words: the classes of a classifier, with the names in the model's metadata.

import { isFloat } from "./tensors.js";

/** @typedef {import("./tensors.js").Tensor} Tensor */

/**
 * Return the names of a version's classes: from the server's reading of its graph, or from its metadata.
 * @param {any} version The server's description.
 * @returns {string[]}
 */
export const namesOf = version => (version.outputs.find((/** @type {any} */ one) => one.classes?.length)?.classes ?? classNames(version.metadata.properties)).map(String);

/**
 * Return the names of a model's classes by index, or an empty list.
 * @param {Record<string, string>} properties The model's metadata.
 * @returns {string[]}
 */
export function classNames(properties) {
  for (const name of ["classes", "labels", "names", "id2label", "label2id"]) {
    const found = namesIn(properties[name] ?? "");
    if (found.length) return found;
  }
  return [];
}

/**
 * Read names from JSON, from a Python dictionary (Ultralytics), or separated by commas or lines.
 * @param {string} text
 * @returns {string[]}
 */
function namesIn(text) {
  let read;
  try {
    read = JSON.parse(text);
  } catch {
    const printed = [...text.matchAll(/(\d+)\s*:\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")/g)];
    if (/^\s*\{/.test(text)) return byIndex(printed.map(([, index, single, double]) => [Number(index), (single ?? double).replace(/\\(.)/g, "$1")]));
    return /[,\n]/.test(text) ? text.trim().split(/[,\n]/).map(one => one.trim()) : [];
  }
  if (Array.isArray(read)) return read.map(one => String(one?.name ?? one?.label ?? one));
  if (!read || typeof read !== "object") return [];
  const pairs = Object.entries(read);
  return byIndex(pairs.every(([, value]) => Number.isInteger(value)) ? pairs.map(([key, value]) => [Number(value), key]) : pairs.map(([key, value]) => [Number(key), String(value)]));
}

/** @param {[number, string][]} pairs */
const byIndex = pairs => pairs.sort(([one], [other]) => one - other).map(([, name]) => name);

const MAX_UNNAMED = 1000; // classes

/**
 * A ranking of classes for each row of scores.
 * @typedef {{output: string, rows: {name: string, score: number}[][], probabilities: boolean}} Ranking
 */

/**
 * Return the scores of an answer by class, best first, or null if no output is a classifier's.
 * @param {Tensor[]} outputs
 * @param {string[]} names
 * @returns {Ranking | null}
 */
export function ranking(outputs, names) {
  const tables = outputs.filter(isTable);
  const found = tables.find(one => one.shape[1] === names.length) ?? tables.find(isByName) ?? tables.find(areProbabilities);
  if (!found) return null;
  const count = found.shape[found.shape.length - 1];
  const named = count === names.length, scores = Array.from(found.data, Number);
  const rows = [];
  for (let start = 0; start < scores.length; start += count) {
    const row = scores.slice(start, start + count);
    rows.push(row.map((score, index) => ({ name: named ? names[index] : `class ${index}`, score })).sort((one, other) => order(other.score) - order(one.score)));
  }
  return { output: found.name, rows, probabilities: areShares(found) };
}

/** @param {number} score NaN is last. */
const order = score => (Number.isNaN(score) ? -Number.MAX_VALUE : score);

/** Return true if an output has a few numbers for each row. @param {Tensor} output */
const isTable = ({ shape, datatype, data }) => shape.length === 2 && isFloat(datatype) && data.length <= 100_000 && shape[1] >= 2;

/** Return true if an output has a classifier's usual name. @param {Tensor} output */
const isByName = ({ name, shape }) => shape[1] <= MAX_UNNAMED && /prob|score|logit|class/i.test(name);

/** Return true if an output has probabilities of a few classes. @param {Tensor} output */
const areProbabilities = output => output.shape[1] <= MAX_UNNAMED && areShares(output);

/** Return true if the numbers of each row add up to 1. @param {Tensor} output */
function areShares({ shape, data }) {
  for (let start = 0; start < data.length; start += shape[1]) {
    const row = Array.from({ length: shape[1] }, (_, place) => Number(data[start + place]));
    if (!row.every(score => score >= 0 && score <= 1 + 1e-6) || Math.abs(row.reduce((sum, score) => sum + score, 0) - 1) >= 0.01) return false;
  }
  return data.length > 0;
}

/**
 * Describe the first row of an answer in a few words.
 * @param {Tensor[]} outputs
 * @param {string[]} names
 */
export function inWords(outputs, names) {
  const ranked = ranking(outputs, names);
  if (ranked && ranked.rows.length) {
    const [best] = ranked.rows[0];
    return { label: best.name, detail: ranked.probabilities ? percent(best.score) : `score ${Number(best.score.toPrecision(4))}` };
  }
  const [first] = outputs;
  if (!first || !first.data.length) return { label: "no values", detail: "" };
  if (first.data.length === 1 || first.shape.length === 1) {
    const value = first.data[0];
    const named = first.datatype.startsWith("INT") && names[Number(value)];
    return { label: named || shortValue(value), detail: first.name };
  }
  return { label: `${first.name} [${first.shape.join(", ")}]`, detail: first.datatype };
}

/** @param {number | bigint | string} value */
export const shortValue = value => (typeof value === "number" ? String(Number.isInteger(value) ? value : Number(value.toPrecision(6))) : String(value).slice(0, 200));

/** @param {number} share */
export const percent = share => `${(share * 100).toFixed(share > 0.9995 || share < 0.0995 ? 2 : 1)} %`;
