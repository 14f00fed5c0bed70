// The server this page came from. A key is kept in this module's memory and nowhere else.

/** The address of the server, with a slash at its end: this file is `playground/files/DIGEST/api.js`. */
export const ROOT = new URL("../../../", import.meta.url);

let key = "";

/** Whether a key is sent along. */
export const hasKey = () => key !== "";

/** @param {string} sent Sent with each request until the page is left; "" sends none. */
export function useKey(sent) {
  key = sent.trim();
}

/** An answer that is not what was asked for. */
export class Refused extends Error {
  /** @param {string} message @param {number} status 0 where there was no answer at all. */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/**
 * Ask the server. Raises Refused with the server's own words.
 * @param {string} path Relative to ROOT.
 * @param {RequestInit} [options]
 * @returns {Promise<Response>}
 */
export async function ask(path, options = {}) {
  const headers = new Headers(options.headers);
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
