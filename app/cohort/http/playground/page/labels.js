// What an output says to people: the classes of a classifier, by the names in the model's metadata.

import { isFloat } from "./tensors.js";

/** @typedef {import("./tensors.js").Tensor} Tensor */

/**
 * The names of a version's classes: as the server has read them from its graph, else from its metadata.
 * @param {any} version As the server describes it.
 * @returns {string[]}
 */
export const namesOf = version => (version.outputs.find((/** @type {any} */ one) => one.classes?.length)?.classes ?? classNames(version.metadata.properties)).map(String);

/**
 * The names of a model's classes, by index; empty where its metadata has none.
 * @param {Record<string, string>} properties Of the model's metadata.
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
 * The names in JSON, in a dictionary as Python prints it (Ultralytics), or in words with commas or in lines.
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

const MOST_UNNAMED = 1000; // classes

/**
 * A ranking of classes: of one row of scores.
 * @typedef {{output: string, rows: {name: string, score: number}[][], probabilities: boolean}} Ranking
 */

/**
 * The scores of an answer by class, best first; null where no output is that of a classifier.
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

/** @param {number} score NaN is none. */
const order = score => (Number.isNaN(score) ? -Number.MAX_VALUE : score);

/** Whether an output has a few numbers for each row. @param {Tensor} output */
const isTable = ({ shape, datatype, data }) => shape.length === 2 && isFloat(datatype) && data.length <= 100_000 && shape[1] >= 2;

/** Whether it is called what outputs of classifiers are. @param {Tensor} output */
const isByName = ({ name, shape }) => shape[1] <= MOST_UNNAMED && /prob|score|logit|class/i.test(name);

/** Whether it says how likely each of a few classes is. @param {Tensor} output */
const areProbabilities = output => output.shape[1] <= MOST_UNNAMED && areShares(output);

/** Whether the numbers of each row are shares of a whole. @param {Tensor} output */
function areShares({ shape, data }) {
  for (let start = 0; start < data.length; start += shape[1]) {
    const row = Array.from({ length: shape[1] }, (_, place) => Number(data[start + place]));
    if (!row.every(score => score >= 0 && score <= 1 + 1e-6) || Math.abs(row.reduce((sum, score) => sum + score, 0) - 1) >= 0.01) return false;
  }
  return data.length > 0;
}

/**
 * What an answer says in a few words, of its first row.
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
