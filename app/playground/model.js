// One model: try it, compare its versions, and what is known of it.

import { details as answerDetails, difference, headline } from "./answers.js";
import { askJson, ask, pathOf } from "./api.js";
import { fill, h, sentence } from "./dom.js";
import { formFor } from "./forms.js";
import { backends, openHere } from "./browser.js";
import { aboutModel, aboutVersion } from "./about.js";
import { classNames } from "./labels.js";
import { parse, stringify } from "./json.js";
import { badge } from "./models.js";
import { link } from "./routes.js";
import { snippets } from "./snippets.js";
import { nested, outputsOf, request } from "./tensors.js";

/** @typedef {import("./answers.js").Answer} Answer */

/**
 * Show a model.
 * @param {HTMLElement} main
 * @param {string} name
 * @param {AbortSignal} left Says when the page is left.
 */
export async function showModel(main, name, left) {
  const model = await askJson(pathOf(name), { signal: left });
  const ready = model.versions.filter((/** @type {any} */ one) => one.state === "READY" && one.inputs);
  const description = ready.find((/** @type {any} */ one) => one.version === model.default_version)?.metadata.description;
  fill(main,
    h("p", { class: "path" }, link("", "Models"), " / "),
    h("h1", {}, name),
    h("p", {}, ...model.versions.map((/** @type {any} */ one) => badge(one, model.default_version))),
    description && h("p", {}, description),
    ready.length ? await tryIt(name, model, ready, left) : h("p", { class: "warning" }, "No version of it serves now."),
    ...aboutModel(name, model),
    ...model.versions.map((/** @type {any} */ one) => aboutVersion(name, one, one.version === model.default_version)));
}

/**
 * The form, its buttons and what is answered.
 * @param {string} name @param {any} model @param {any[]} ready Versions. @param {AbortSignal} left
 */
async function tryIt(name, model, ready, left) {
  const byVersion = new Map(ready.map(one => [one.version, one]));
  const newest = ready.map(one => one.version).sort((one, other) => Number(other) - Number(one));
  const first = byVersion.has(model.default_version) ? model.default_version : newest[0];
  const choice = versionChoice("version", newest, first);
  const against = versionChoice("against", newest, newest.find(one => one !== first) ?? first);
  const status = h("p", { role: "status", class: "headline" }, h("span", { class: "hint" }, "The answer comes here."));
  const below = h("div", {});
  const answer = h("section", { class: "answer", "aria-label": "Answer" }, status, below);
  const place = h("div", {});
  /** @type {import("./forms.js").Form} */
  let form;
  /** @type {{files: string[], runtime: string}} */
  let given = { files: [], runtime: "" };
  const here = h("select", { id: "here" });

  let inputs = "";
  const useVersion = async () => {
    const version = byVersion.get(choice.value);
    const { example, ...more } = await askJson(`playground/data/${encodeURIComponent(name)}/${encodeURIComponent(choice.value)}`, { signal: left });
    given = more;
    runHere.hidden = !given.files.length || !given.runtime;
    if (inputs === JSON.stringify(version.inputs)) return; // what is filled in stays
    inputs = JSON.stringify(version.inputs);
    form = formFor(version.inputs, example, version.metadata.properties);
    fill(place, form.element);
  };
  const guarded = (/** @type {() => Promise<void>} */ act) => async () => {
    for (const button of buttons) button.disabled = true;
    try {
      await act();
    } catch (error) {
      if (left.aborted) return;
      fill(status, h("span", { class: "warning" }, sentence(error)));
      fill(below);
    } finally {
      for (const button of buttons) button.disabled = false;
    }
  };
  const predict = async (/** @type {string} */ version, /** @type {import("./tensors.js").Tensor[]} */ tensors) => {
    const sent = request(pathOf(name, version), tensors);
    return { sent, answer: await answerOf(byVersion.get(version), sent, left) };
  };
  const onPredict = guarded(async () => {
    const { sent, answer: got } = await predict(choice.value, form.read());
    fill(status, ...headline(got));
    answer.scrollIntoView({ block: "nearest" });
    fill(below, ...answerDetails(got), h("details", {}, h("summary", {}, "The same request in curl, Python and JavaScript"), snippets(sent)));
  });
  const onCompare = guarded(async () => {
    const tensors = form.read();
    const one = (await predict(choice.value, tensors)).answer, other = (await predict(against.value, tensors)).answer;
    showComparison(status, below, one, other);
  });
  const onRunHere = guarded(async () => {
    const tensors = form.read(), version = byVersion.get(choice.value);
    const backend = /** @type {import("./browser.js").Backend} */ (here.value);
    const words = h("span", { class: "hint" }), bar = h("progress", { max: "1", "aria-label": "Loaded" });
    const say = (/** @type {string} */ text, /** @type {number | null} */ share) => {
      if (words.textContent !== text) words.textContent = text; // read out once
      if (share === null) bar.removeAttribute("value");
      else bar.value = share;
      if (words.parentNode !== status) { fill(status, words); fill(below, bar); }
    };
    const server = (await predict(choice.value, tensors)).answer;
    const session = await openHere({ model: name, version, files: given.files, release: given.runtime }, backend, say);
    const { outputs, seconds } = await session.run(tensors);
    const raw = stringify(Object.fromEntries(outputs.map(one => [one.name, nested(one)])));
    const title = `This browser, ${session.backend === "webgpu" ? "WebGPU" : `WebAssembly, ${session.threads} ${session.threads > 1 ? "threads" : "thread"}`}`;
    const note = session.refused && `WebGPU did not take this model: ${session.refused}`;
    showComparison(status, below, { ...server, title: `Server, version ${choice.value}` }, { title, note, outputs, names: server.names, raw, times: { total: seconds, queue: null, run: null, here: true } });
  });
  const onClear = () => {
    form.clear();
    fill(status, h("span", { class: "hint" }, "The answer comes here."));
    fill(below);
  };
  choice.addEventListener("change", guarded(useVersion));
  const runHere = h("button", { type: "button", onclick: onRunHere, hidden: true }, "Run in browser");
  const buttons = [
    h("button", { type: "submit", class: "main" }, "Predict"),
    h("button", { type: "button", onclick: onClear }, "Clear"),
    h("button", { type: "button", onclick: onCompare, hidden: ready.length < 2 }, "Compare"),
    runHere,
  ];
  fill(here, ...backends().map(one => h("option", { value: one }, one === "webgpu" ? "WebGPU" : "WebAssembly")));
  await useVersion();
  return h("section", { class: "try", "aria-label": "Try it" },
    h("form", { onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); onPredict(); } },
      place,
      h("p", { class: "buttons" }, ...buttons),
      h("p", {}, h("label", { for: "version" }, "Version "), choice,
        ready.length > 1 && h("label", { for: "against" }, " compared with "), ready.length > 1 && against),
      here.options.length > 1 && !runHere.hidden && h("p", {}, h("label", { for: "here" }, "In the browser by "), here)),
    answer);
}

/** @param {string} id @param {string[]} versions @param {string} chosen */
function versionChoice(id, versions, chosen) {
  const choice = h("select", { id }, ...versions.map(version => h("option", { value: version }, version)));
  choice.value = chosen;
  return choice;
}

/**
 * Send a request, and read what is answered.
 * @param {any} version @param {ReturnType<typeof request>} sent @param {AbortSignal} left
 * @returns {Promise<Answer>}
 */
async function answerOf(version, { path, options }, left) {
  const began = performance.now();
  const response = await ask(`${path}?server_timing`, { ...options, signal: left });
  const raw = await response.text();
  const total = (performance.now() - began) / 1000;
  const outputs = outputsOf(parse(raw), version.outputs);
  return { title: `Version ${version.version}`, outputs, names: classNames(version.metadata.properties), raw, times: { total, ...serverTimes(response) } };
}

/** What the server says of its own time (https://www.w3.org/TR/server-timing/). @param {Response} response */
function serverTimes(response) {
  const parts = Object.fromEntries((response.headers.get("server-timing") ?? "").split(",").map(part => {
    const [name, ...rest] = part.trim().split(";");
    const found = rest.find(one => one.startsWith("dur="));
    return [name, found ? Number(found.slice(4)) / 1000 : null];
  }));
  return { queue: parts.queue ?? null, run: parts.run ?? null };
}

/** @param {HTMLElement} status @param {HTMLElement} below @param {Answer} one @param {Answer} other */
export function showComparison(status, below, one, other) {
  const { lines, differs } = difference(one, other);
  fill(status, h("strong", { class: differs ? "warning" : "" }, lines[0] ?? "Nothing to compare."));
  fill(below,
    h("ul", { class: "differences" }, ...lines.slice(1).map(line => h("li", {}, line))),
    h("div", { class: "sides" }, ...[one, other].map(side => h("section", { "aria-label": side.title }, h("h3", {}, side.title), side.note && h("p", { class: "warning" }, side.note), h("p", { class: "headline" }, ...headline(side)), ...answerDetails(side)))));
}
