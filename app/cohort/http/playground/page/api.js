// The server this page came from. A key is kept in this module's memory and nowhere else.

/** The address of the server, with a slash at its end: this file is `playground/files/DIGEST/api.js`. */
export const ROOT = new URL("../../../", import.meta.url);

/** What a key is for: what callers ask, or what the server counts. @typedef {"callers" | "metrics"} KeyKind */

/** @type {Record<KeyKind, string>} */
const keys = { callers: "", metrics: "" };

/** Told on `document` when keys have changed. */
export const KEYS_CHANGED = "keys-changed";

/** Whether a key is sent along. */
export const hasKey = () => Object.values(keys).some(Boolean);

/** Send a key with each request until the page is left. Raises an Error where no header can have it. @param {string} sent @param {KeyKind} [kind] */
export function useKey(sent, kind = "callers") {
  const odd = /[^\x21-\x7e]/u.exec(sent.trim());
  if (odd) throw new Error(`A key has letters, digits and signs of ASCII alone; this one has "${odd[0]}" (U+${odd[0].codePointAt(0)?.toString(16).toUpperCase().padStart(4, "0")}).`);
  keys[kind] = sent.trim();
  document.dispatchEvent(new Event(KEYS_CHANGED));
}

/** Send none any more. */
export function forgetKeys() {
  keys.callers = keys.metrics = "";
  document.dispatchEvent(new Event(KEYS_CHANGED));
}

/** An answer that is not what was asked for. */
export class Refused extends Error {
  /** @param {string} message @param {number} status 0 where there was no answer at all. */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Whether it is a key that is missing, or the wrong one. @param {unknown} error */
export const needsKey = error => error instanceof Refused && error.status === 401;

/**
 * Ask the server. Raises Refused with the server's own words.
 * @param {string} path Relative to ROOT.
 * @param {RequestInit} [options]
 * @param {KeyKind} [kind] Which key is sent, if there is one; else that of callers.
 * @returns {Promise<Response>}
 */
export async function ask(path, options = {}, kind = "callers") {
  const headers = new Headers(options.headers), key = keys[kind] || keys.callers;
  if (key && !headers.has("authorization")) headers.set("authorization", `Bearer ${key}`);
  let response;
  try {
    response = await fetch(new URL(path, ROOT), { ...options, headers });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Refused("The server cannot be reached. Is it still running?", 0);
  }
  if (response.ok) return response;
  throw new Refused(await words(response), response.status);
}

/** @param {Response} response */
async function words(response) {
  try {
    const said = await response.json();
    if (typeof said.error === "string") return said.error;
  } catch {
    // it has no words
  }
  return `The server answered ${response.status} ${response.statusText}`.trim();
}

/**
 * @param {string} path
 * @param {RequestInit} [options]
 * @returns {Promise<any>}
 */
export async function askJson(path, options) {
  return (await ask(path, options)).json();
}

/**
 * The path of a model, or of one of its versions.
 * @param {string} model
 * @param {string} [version]
 */
export function pathOf(model, version) {
  const path = `models/${encodeURIComponent(model)}`;
  return version ? `${path}/versions/${encodeURIComponent(version)}` : path;
}

/**
 * The path of what only the page asks of a version.
 * @param {string} model
 * @param {string} version
 */
export const dataPathOf = (model, version) => `playground/data/${encodeURIComponent(model)}/${encodeURIComponent(version)}`;
