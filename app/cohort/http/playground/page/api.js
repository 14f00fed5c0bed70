// Requests to the server of this page. A key is kept only in this module's memory.

/** The address of the server with a trailing slash. This file is `playground/files/DIGEST/api.js`. */
export const ROOT = new URL("../../../", import.meta.url);

/** The use of a key: requests, or metrics. @typedef {"callers" | "metrics"} KeyKind */

/** @type {Record<KeyKind, string>} */
const keys = { callers: "", metrics: "" };

/** Event on `document` when keys have changed. */
export const KEYS_CHANGED = "keys-changed";

/** Return true if a key is sent. */
export const hasKey = () => Object.values(keys).some(Boolean);

/** Send a key with each request until the page is left. Raises an Error if it cannot be a header. @param {string} sent @param {KeyKind} [kind] */
export function useKey(sent, kind = "callers") {
  const odd = /[^\x21-\x7e]/u.exec(sent.trim());
  if (odd) throw new Error(`A key may contain only printable ASCII characters without spaces; this one contains "${odd[0]}" (U+${odd[0].codePointAt(0)?.toString(16).toUpperCase().padStart(4, "0")}).`);
  keys[kind] = sent.trim();
  document.dispatchEvent(new Event(KEYS_CHANGED));
}

/** Stop sending keys. */
export function forgetKeys() {
  keys.callers = keys.metrics = "";
  document.dispatchEvent(new Event(KEYS_CHANGED));
}

/** An error from the server, or no answer. */
export class Refused extends Error {
  /** @param {string} message @param {number} status 0 without an answer. */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Return true if a key is missing or wrong. @param {unknown} error */
export const needsKey = error => error instanceof Refused && error.status === 401;

/**
 * Send a request. Raises Refused with the server's error sentence.
 * @param {string} path Relative to ROOT.
 * @param {RequestInit} [options]
 * @param {KeyKind} [kind] The key to send; without one, that of callers.
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
    const body = await response.json();
    if (typeof body.error === "string") return body.error;
    if (typeof body.error?.message === "string") return body.error.message; // OpenAI's form
  } catch {
    // not JSON
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
 * Return the path of a model or one of its versions.
 * @param {string} model
 * @param {string} [version]
 */
export function pathOf(model, version) {
  const path = `models/${encodeURIComponent(model)}`;
  return version ? `${path}/versions/${encodeURIComponent(version)}` : path;
}

/**
 * Return the path of a version's data that only this page uses.
 * @param {string} model
 * @param {string} version
 */
export const dataPathOf = (model, version) => `playground/data/${encodeURIComponent(model)}/${encodeURIComponent(version)}`;
