// JSON with 64-bit integers. Those beyond 2^53 become bigints if the browser reports the source
// text (https://github.com/tc39/proposal-json-parse-with-source).

const LONG = /(?<![.\d])\d{16}/; // other texts are parsed without a callback for each value

/**
 * @param {string} text
 * @returns {any}
 */
export function parse(text) {
  return LONG.test(text) ? /** @type {any} */ (JSON).parse(text, exact) : JSON.parse(text);
}

/** @param {string} _ @param {unknown} value @param {{source?: string}} [context] */
function exact(_, value, context) {
  const source = context?.source ?? "";
  return typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(source) ? BigInt(source) : value;
}

/**
 * @param {unknown} value
 * @param {number} [indent] Indentation per level; without it, one line.
 * @returns {string}
 */
export function stringify(value, indent) {
  return JSON.stringify(value, (_, one) => (typeof one === "bigint" ? raw(one) : one), indent);
}

/** @param {bigint} value */
function raw(value) {
  const known = /** @type {{rawJSON?: (text: string) => unknown}} */ (JSON);
  if (!known.rawJSON) throw new Error(`This browser is too old to send ${value}: it rounds numbers above 2^53.`);
  return known.rawJSON(String(value));
}
