// The request that was sent, for terminals and programs.

import { h } from "./dom.js";
import { ROOT, hasKey } from "./api.js";

const MAX_SHOWN = 6000, FILE = "request.bin";

/**
 * Show how to send the same request from elsewhere.
 * @param {import("./tensors.js").Sent} request
 * @returns {HTMLElement}
 */
export function snippets({ path, options, binary, bytes }) {
  const url = new URL(path, ROOT).href;
  const headers = { .../** @type {Record<string, string>} */ (options.headers) };
  const body = options.body;
  const asFile = binary || typeof body !== "string" || body.length > MAX_SHOWN;
  /** @type {[string, string][]} */
  const texts = [
    ["curl", curl(url, headers, asFile ? null : /** @type {string} */ (body), bytes)],
    ["Python", python(url, headers, asFile ? null : /** @type {string} */ (body), bytes)],
    ["JavaScript", javascript(url, headers, asFile ? null : /** @type {string} */ (body), bytes)],
  ];
  return h("div", {},
    asFile && h("p", { class: "hint" }, `The body is too long to show. `, h("button", { type: "button", class: "quiet", onclick: () => save(/** @type {BlobPart} */ (body)) }, `Save ${FILE}`)),
    ...texts.map(([title, text]) => h("div", { class: "snippet" }, h("h4", {}, title), h("button", { type: "button", class: "quiet copy", "aria-label": `Copy ${title}`, onclick: (/** @type {Event} */ event) => copy(text, /** @type {HTMLElement} */ (event.currentTarget)) }, "Copy"), h("pre", { tabindex: "0" }, text))));
}

/** @param {string} text Text for a shell. */
const quoted = text => `'${text.replaceAll("'", `'\\''`)}'`;

/** @param {string} url @param {Record<string, string>} headers @param {string | null} body @param {boolean} bytes True if the answer is binary. */
function curl(url, headers, body, bytes) {
  const lines = [`curl -s ${quoted(url)}`, ...Object.entries(headers).map(([name, value]) => `-H ${quoted(`${name}: ${value}`)}`)];
  if (hasKey()) lines.push('-H "authorization: Bearer $COHORT_API_KEY"');
  lines.push(body === null ? `--data-binary @${FILE}` : `-d ${quoted(body)}`);
  if (bytes) lines.push("--output answer.bin");
  return lines.join(" \\\n  ");
}

/** @param {string} url @param {Record<string, string>} headers @param {string | null} body @param {boolean} bytes True if the answer is binary. */
function python(url, headers, body, bytes) {
  const sent = Object.entries(headers).map(([name, value]) => `    ${JSON.stringify(name)}: ${JSON.stringify(value)},`);
  if (hasKey()) sent.push('    "authorization": "Bearer " + os.environ["COHORT_API_KEY"],');
  const content = body === null ? `open("${FILE}", "rb").read()` : `${JSON.stringify(body)}`;
  return [
    ...(hasKey() ? ["import os", ""] : []),
    "import httpx",
    "",
    "headers = {",
    ...sent,
    "}",
    `response = httpx.post(\n    ${JSON.stringify(url)},\n    headers=headers,\n    content=${content},\n)`,
    bytes ? "print(response.content)" : "print(response.json())",
  ].join("\n");
}

/** @param {string} url @param {Record<string, string>} headers @param {string | null} body @param {boolean} bytes True if the answer is binary. */
function javascript(url, headers, body, bytes) {
  const sent = Object.entries(headers).map(([name, value]) => `    ${JSON.stringify(name)}: ${JSON.stringify(value)},`);
  if (hasKey()) sent.push('    "authorization": `Bearer ${process.env.COHORT_API_KEY}`,');
  const content = body === null ? `await (await import("node:fs/promises")).readFile("${FILE}")` : JSON.stringify(body);
  return [`const response = await fetch(${JSON.stringify(url)}, {`, '  method: "POST",', "  headers: {", ...sent, "  },", `  body: ${content},`, "});", bytes ? "console.log(await response.arrayBuffer());" : "console.log(await response.text());"].join("\n");
}

/** @param {string} text @param {HTMLElement} button */
async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Select the text and copy it"; // the clipboard needs https
  }
}

/** @param {BlobPart} body */
function save(body) {
  const url = URL.createObjectURL(new Blob([body], { type: "application/octet-stream" }));
  h("a", { href: url, download: FILE }).click();
  URL.revokeObjectURL(url);
}
