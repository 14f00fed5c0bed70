// What an output says to people: the classes of a classifier, by the names in the model's metadata.

import { isText } from "./tensors.js";

/** @typedef {import("./tensors.js").Tensor} Tensor */

/**
 * The names of a model's classes, by index; empty where its metadata has none.
 * @param {Record<string, string>} properties Of the model's metadata.
 * @returns {string[]}
 */
export function classNames(properties) {
  for (const name of ["classes", "labels", "names"]) {
    const text = properties[name];
    if (!text) continue;
    try {
      const read = JSON.parse(text);
      if (Array.isArray(read)) return read.map(String);
      if (read && typeof read === "object") return Object.keys(read).sort((one, other) => Number(one) - Number(other)).map(key => String(read[key]));
    } catch {
      if (/[,\n]/.test(text)) return text.split(/[,\n]/).map(one => one.trim());
    }
  }
  return [];
}

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
  const found = outputs.find(one => isScores(one, names));
  if (!found) return null;
  const count = found.shape[found.shape.length - 1];
  const scores = Array.from(found.data, Number);
  const rows = [];
  for (let start = 0; start < scores.length; start += count) {
    const row = scores.slice(start, start + count);
    rows.push(row.map((score, index) => ({ name: names[index] ?? `class ${index}`, score })).sort((one, other) => other.score - one.score));
  }
  const sums = rows.map(row => row.reduce((sum, { score }) => sum + score, 0));
  const probabilities = scores.every(score => score >= 0 && score <= 1 + 1e-6) && sums.every(sum => Math.abs(sum - 1) < 0.01);
  return { output: found.name, rows, probabilities };
}

/** @param {Tensor} output @param {string[]} names */
function isScores({ shape, datatype, data }, names) {
  if (shape.length !== 2 || isText(datatype) || !/^B?F/.test(datatype) || data.length > 100_000) return false;
  const count = shape[1];
  return names.length ? count === names.length : count >= 2 && count <= 1000;
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
