// Arrays, and their conversion to nested lists and to the server's formats.

import { fromHalf } from "./halves.js";
import { parse, stringify } from "./json.js";

/**
 * An array. `data` is flat, in row-major order; booleans are 0 and 1.
 * @typedef {{name: string, datatype: string, shape: number[], data: ArrayLike<number | bigint | string>}} Tensor
 */

/**
 * An input or output in the server's description. A dimension may be a name or null: any size.
 * `takes` is what callers send instead of an array: image, audio, text or file. `processing` describes
 * the conversion. `missing` replaces a missing value if that is not NaN.
 * @typedef {{name: string, datatype: string, shape: (number | string | null)[] | null, transportable: boolean, takes?: string, processing?: string, missing?: number | string}} Spec
 */

/** @type {Record<string, new (values: number[] | number) => ArrayLike<number>>} */
const NUMBERS = {
  FP64: Float64Array, FP32: Float32Array, FP16: Float32Array, BF16: Float32Array,
  INT8: Int8Array, INT16: Int16Array, INT32: Int32Array,
  UINT8: Uint8Array, UINT16: Uint16Array, UINT32: Uint32Array, BOOL: Uint8Array,
};

const MAX_JSON_VALUES = 4096; // more values are sent as bytes, if the datatype allows it
const BINARY = new Set(["FP64", "FP32", "INT8", "INT16", "INT32", "UINT8", "UINT16", "UINT32", "BOOL", "INT64", "UINT64"]);

/** @param {readonly number[]} shape */
export const sizeOf = shape => shape.reduce((product, size) => product * size, 1);

/** @param {string} datatype */
export const isText = datatype => datatype === "BYTES";

/** @param {string} datatype */
export const isFloat = datatype => /^B?FP?(16|32|64)$/.test(datatype) || datatype === "BF16";

/**
 * Make flat data of an input's datatype. Raises an Error that names the first invalid value.
 * @param {{name: string, datatype: string}} spec
 * @param {(number | bigint | string | boolean)[]} values
 * @returns {ArrayLike<number | bigint | string>}
 */
export function typed({ name, datatype }, values) {
  if (isText(datatype)) return /** @type {any} */ (values.map(one => (isBase64(one) ? one : String(one))));
  const refuse = (/** @type {number | bigint | string | boolean} */ value) => {
    throw new Error(`"${name}" has datatype ${datatype}, which cannot hold ${value}.`);
  };
  if (datatype === "INT64" || datatype === "UINT64") {
    const whole = values.map(value => (typeof value !== "number" || Number.isSafeInteger(value) ? wholeOf(value) : null) ?? refuse(value));
    const made = datatype === "INT64" ? BigInt64Array.from(whole) : BigUint64Array.from(whole);
    whole.forEach((value, place) => { if (made[place] !== value) refuse(value); });
    return made;
  }
  const Numbers = NUMBERS[datatype];
  if (!Numbers) throw new Error(`Inputs of ${datatype} cannot be entered on this page.`);
  const numbers = values.map(Number), made = new Numbers(numbers);
  const fits = isFloat(datatype) // a value that does not fit becomes infinite or is truncated
    ? (/** @type {number} */ value, /** @type {number} */ kept) => Number.isFinite(value) === Number.isFinite(kept)
    : (/** @type {number} */ value, /** @type {number} */ kept) => value === kept && (datatype !== "BOOL" || value < 2);
  numbers.forEach((value, place) => { if (!fits(value, made[place])) refuse(values[place]); });
  return made;
}

/** Return true for bytes in JSON. @param {any} value */
const isBase64 = value => typeof value?.b64 === "string";

/** @param {number | bigint | string | boolean} value @returns {bigint | null} Null if it is not an integer. */
function wholeOf(value) {
  try {
    return BigInt(value);
  } catch {
    return null;
  }
}

/**
 * Make an array from nested lists. Raises an Error that describes where they do not fit.
 * @param {Spec} spec
 * @param {unknown} nested
 * @returns {Tensor}
 */
export function fromNested(spec, nested) {
  const shape = shapeOf(nested);
  /** @type {any[]} */
  const values = [];
  const walk = (/** @type {unknown} */ part, /** @type {number} */ depth) => {
    if (depth === shape.length) {
      if (Array.isArray(part) || part === null || (typeof part === "object" && !(isText(spec.datatype) && isBase64(part))))
        throw new Error(`"${spec.name}" must contain ${isText(spec.datatype) ? "texts" : "numbers"}, not ${JSON.stringify(part)?.slice(0, 40)}.`);
      values.push(part);
    } else if (!Array.isArray(part) || part.length !== shape[depth]) {
      throw new Error(`The lists of "${spec.name}" must have the same length at each level.`);
    } else {
      for (const one of part) walk(one, depth + 1);
    }
  };
  walk(nested, 0);
  if (!isText(spec.datatype) && values.some(one => typeof one === "string" && (one.trim() === "" || Number.isNaN(Number(one)))))
    throw new Error(`"${spec.name}" must contain numbers (${spec.datatype}), not text.`);
  return { name: spec.name, datatype: spec.datatype, shape, data: typed(spec, values) };
}

/** Return the length of the first list at each level. @param {unknown} nested @returns {number[]} */
function shapeOf(nested) {
  const shape = [];
  for (let part = nested; Array.isArray(part); part = part[0]) shape.push(part.length);
  return shape;
}

/**
 * Return nested lists. Integers beyond 2^53 are bigints, which `json.js` can write.
 * @param {Tensor} tensor
 * @returns {unknown}
 */
export function nested({ datatype, shape, data }) {
  const value = (/** @type {number} */ place) => {
    const one = data[place];
    if (datatype === "BOOL") return Boolean(one);
    if (typeof one === "bigint") return Number.isSafeInteger(Number(one)) ? Number(one) : one;
    return typeof one === "number" && datatype === "FP32" ? shortest(one) : one;
  };
  let place = 0;
  const build = (/** @type {number} */ depth) => {
    if (depth === shape.length) return value(place++);
    /** @type {unknown[]} */
    const list = [];
    for (let index = 0; index < shape[depth]; index++) list.push(build(depth + 1));
    return list;
  };
  return build(0);
}

/**
 * Return the shortest number that is the same in single precision.
 * @param {number} value
 */
export function shortest(value) {
  for (let digits = 6; digits <= 9; digits++) {
    const short = Number(value.toPrecision(digits));
    if (Math.fround(short) === Math.fround(value)) return short;
  }
  return value;
}

/**
 * A request for fetch. `binary` is true if its body has bytes, `bytes` if the answer has.
 * @typedef {{path: string, options: RequestInit, binary: boolean, bytes: boolean}} Sent
 */

/**
 * Make a request for a version: JSON for `/predict`, or the Open Inference Protocol with many values
 * as bytes.
 * @param {string} modelPath The path of the version.
 * @param {Tensor[]} tensors
 * @param {boolean} [bytes] True to request bytes in the answer (Open Inference Protocol).
 * @returns {Sent}
 */
export function request(modelPath, tensors, bytes = false) {
  const values = tensors.reduce((sum, one) => sum + one.data.length, 0);
  const parameters = { binary_data_output: bytes };
  if (values <= MAX_JSON_VALUES || !tensors.every(one => BINARY.has(one.datatype))) {
    const body = bytes
      ? stringify({ parameters, inputs: tensors.map(one => ({ name: one.name, datatype: one.datatype, shape: one.shape, data: [nested(one)].flat(Infinity) })) })
      : stringify({ inputs: Object.fromEntries(tensors.map(one => [one.name, nested(one)])) });
    const path = bytes ? `v2/${modelPath}/infer` : `${modelPath}/predict`;
    return { path, options: { method: "POST", headers: { "content-type": "application/json" }, body }, binary: false, bytes };
  }
  const parts = tensors.map(one => /** @type {ArrayBufferView<ArrayBuffer>} */ (/** @type {unknown} */ (one.data)));
  const head = new TextEncoder().encode(JSON.stringify({
    parameters,
    inputs: tensors.map(({ name, datatype, shape }, place) => ({ name, datatype, shape, parameters: { binary_data_size: parts[place].byteLength } })),
  }));
  return {
    path: `v2/${modelPath}/infer`,
    options: {
      method: "POST",
      headers: { "content-type": "application/octet-stream", "inference-header-content-length": String(head.length) },
      body: new Blob([head, ...parts]),
    },
    binary: true,
    bytes,
  };
}

/**
 * Return the outputs of a binary answer and its JSON.
 * @param {Headers} headers
 * @param {ArrayBuffer} content
 * @returns {{raw: string, outputs: Tensor[]}}
 */
export function readBinary(headers, content) {
  let place = Number(headers.get("inference-header-content-length"));
  const raw = new TextDecoder().decode(content.slice(0, place));
  const outputs = parse(raw).outputs.map((/** @type {Tensor & {parameters: {binary_data_size: number}}} */ { name, datatype, shape, parameters }) => {
    const end = place + parameters.binary_data_size, own = content.slice(place, end);
    place = end;
    return { name, datatype, shape, data: fromBytes(datatype, own) };
  });
  return { raw, outputs };
}

/** @param {string} datatype @param {ArrayBuffer} content @returns {Tensor["data"]} */
function fromBytes(datatype, content) {
  if (datatype === "INT64") return new BigInt64Array(content);
  if (datatype === "UINT64") return new BigUint64Array(content);
  if (datatype === "FP16") return Float32Array.from(new Uint16Array(content), fromHalf);
  if (datatype === "BF16") return new Float32Array(Uint32Array.from(new Uint16Array(content), high => high << 16).buffer);
  if (!isText(datatype)) return new /** @type {any} */ (NUMBERS[datatype])(content);
  const texts = [], view = new DataView(content);
  for (let place = 0; place < content.byteLength; ) {
    const end = place + 4 + view.getUint32(place, true);
    texts.push(new TextDecoder().decode(content.slice(place + 4, end)));
    place = end;
  }
  return texts;
}

/**
 * Return the outputs in an answer of either API.
 * @param {any} answer
 * @param {Spec[]} specs The version's outputs.
 * @returns {Tensor[]}
 */
export function outputsOf(answer, specs) {
  const datatypes = new Map(specs.map(spec => [spec.name, spec.datatype]));
  if (Array.isArray(answer.outputs))
    return answer.outputs.map((/** @type {Tensor & {data: any[]}} */ one) => ({ ...one, data: one.data.map(plain) }));
  return Object.entries(answer.outputs).map(([name, value]) => {
    const data = /** @type {any[]} */ (Array.isArray(value) ? value.flat(Infinity) : [value]);
    return { name, datatype: datatypes.get(name) ?? "", shape: shapeOf(value), data: data.map(plain) };
  });
}

/** @param {any} value */
const plain = value => (typeof value === "boolean" ? Number(value) : value);
