// Elements. HTML is never parsed, so text from a model file stays text.

/**
 * Make an element. Properties that begin with "on" are listeners, and all others are attributes.
 * Properties that are false, null or undefined are left out.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, unknown>} [properties]
 * @param {...(Node | string | number | null | undefined | false)} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  assign(element, properties);
  append(element, children);
  return element;
}

/**
 * Make an SVG element.
 * @param {string} tag
 * @param {Record<string, unknown>} [properties]
 * @param {...(Node | string | number | null | undefined | false)} children
 * @returns {SVGElement}
 */
export function svg(tag, properties = {}, ...children) {
  const element = /** @type {SVGElement} */ (document.createElementNS("http://www.w3.org/2000/svg", tag));
  assign(element, properties);
  append(element, children);
  return element;
}

/**
 * Replace the children of an element.
 * @param {Element} element
 * @param {...(Node | string | number | null | undefined | false)} children
 */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

/** @param {Element} element @param {Record<string, unknown>} properties */
function assign(element, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    else element.setAttribute(name, value === true ? "" : String(value));
  }
}

/** @param {Element} element @param {(Node | string | number | null | undefined | false)[]} children */
function append(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    element.append(typeof child === "number" ? String(child) : child);
  }
}

/**
 * Format a number with four significant digits.
 * @param {number} value
 */
export function readable(value) {
  if (!Number.isFinite(value)) return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  return String(Number(value.toPrecision(4)));
}

/**
 * Format a duration.
 * @param {number} seconds
 */
export function duration(seconds) {
  const short = (/** @type {number} */ value) => String(Number(value.toPrecision(3)));
  if (seconds < 1e-3) return `${short(seconds * 1e6)} µs`;
  return seconds < 1 ? `${short(seconds * 1e3)} ms` : `${short(seconds)} s`;
}

/**
 * Return the message of an error.
 * @param {unknown} error
 */
export const sentence = error => (error instanceof Error ? error.message : String(error));
