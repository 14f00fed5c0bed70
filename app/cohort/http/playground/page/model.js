// One model: trying it, comparing versions, and details.

import { details as answerDetails, difference, headline } from "./answers.js";
import { keyForm } from "./access.js";
import { ask, askJson, dataPathOf, needsKey, pathOf } from "./api.js";
import { fill, h, sentence } from "./dom.js";
import { featureNames, formFor } from "./forms.js";
import { backends, canRunHere, openHere } from "./browser.js";
import { operate } from "./admin.js";
import { aboutRollout, aboutVersion } from "./about.js";
import { chatBox } from "./chat.js";
import { namesOf } from "./labels.js";
import { parse, stringify } from "./json.js";
import { badge, problems } from "./models.js";
import { keepWord, link, wordOf } from "./routes.js";
import { snippets } from "./snippets.js";
import { tableFileBox } from "./table_files.js";
import { isText, nested, outputsOf, readBinary, request } from "./tensors.js";

/** @typedef {import("./answers.js").Answer} Answer */

const MAX_LINKED = 1500; // characters of inputs in an address
const WAITING_MS = 500; // time after which the page shows that it waits

/**
 * Show a model.
 * @param {HTMLElement} main
 * @param {string} name
 * @param {AbortSignal} left Aborted when the page is left.
 */
export async function showModel(main, name, left) {
  const model = await askJson(pathOf(name), { signal: left });
  const upper = h("div", {}), rollout = h("div", {}), versions = h("div", {});
  let shown = "";
  const show = async (/** @type {any} */ now) => {
    fill(rollout, ...aboutRollout(now));
    const states = JSON.stringify(now.versions.map((/** @type {any} */ one) => [one.version, one.state, one.files]));
    if (states === shown) return; // keeps the form's contents
    shown = states;
    fill(upper, ...(await summaryAndForm(name, now, left)));
    fill(versions, ...now.versions.map((/** @type {any} */ one) => aboutVersion(name, one, one.version === now.default_version)));
  };
  await show(model);
  fill(main, h("p", { class: "path" }, link("", "Models"), " / "), h("h1", {}, name), upper, rollout, operate(name, model, show), versions);
}

/** Return a model's summary and the form to try it, or the chat. @param {string} name @param {any} model @param {AbortSignal} left */
async function summaryAndForm(name, model, left) {
  const ready = model.versions.filter((/** @type {any} */ one) => one.state === "READY" && one.inputs);
  const chosen = ready.find((/** @type {any} */ one) => one.version === model.default_version);
  const description = chosen?.metadata.description, about = chosen?.language_model;
  return [
    h("p", {}, ...model.versions.map((/** @type {any} */ one) => badge(one, model.default_version))),
    description && h("p", {}, description),
    ...(about ? [chatBox(name, about, left)] : ready.length ? [await tryIt(name, model, ready, left)] : [h("p", { class: "warning" }, "No version of this model is ready."), ...problems(model)]),
  ];
}

/**
 * Make the form, its buttons and the answer.
 * @param {string} name @param {any} model @param {any[]} ready Versions. @param {AbortSignal} left
 */
async function tryIt(name, model, ready, left) {
  const byVersion = new Map(ready.map(one => [one.version, one]));
  const newest = ready.map(one => one.version).sort((one, other) => Number(other) - Number(one));
  const linked = wordOf("version");
  const first = [linked, model.default_version, newest[0]].find(one => byVersion.has(one));
  const choice = versionChoice("version", newest, first);
  const against = versionChoice("against", newest, newest.find(one => one !== first) ?? first);
  const status = h("p", { role: "status", class: "headline" });
  const below = h("div", {});
  const answer = h("section", { class: "answer", "aria-label": "Answer" }, status, below);
  const place = h("div", {});
  /** @type {import("./forms.js").Form} */
  let form;
  /** @type {{files: string[], runtime: string}} */
  let given = { files: [], runtime: "" };
  const here = h("select", { id: "here" });

  const empty = () => { fill(status, h("span", { class: "hint" }, "The answer appears here.")); fill(below); };
  let inputs = "", shown = first; // the version of the form
  const useVersion = async (/** @type {AbortSignal} */ signal) => {
    const version = byVersion.get(choice.value);
    try {
      const { example, made_up, ...more } = await askJson(dataPathOf(name, choice.value), { signal });
      given = more;
      const { properties } = version.metadata, wanted = JSON.stringify([version.inputs, version.optional_inputs, featureNames(properties)]);
      if (inputs !== wanted) { // otherwise the form keeps its contents
        inputs = wanted;
        const linked = linkedInputs(version);
        form = formFor(version.inputs, version.optional_inputs, linked ?? (made_up ? textsOf(version, example) : example), properties, linked !== null);
        fill(place, form.element, form.columns && tableFileBox(form.columns, name, version, askRows, left));
      }
    } catch (error) {
      if (!signal.aborted) choice.value = shown;
      throw error;
    }
    if (against.value === choice.value) against.value = shown === choice.value ? newest.find(one => one !== shown) ?? shown : shown;
    shown = choice.value;
    runHere.hidden = !given.files.length || !given.runtime || !canRunHere(version) || version.inputs.some((/** @type {any} */ one) => one.takes);
    empty(); // it was another version's
  };
  let running = new AbortController();
  const guarded = (/** @type {(signal: AbortSignal) => Promise<void>} */ act) => async () => {
    running.abort(); // only the last request is shown
    const mine = running = new AbortController();
    const signal = AbortSignal.any([left, mine.signal]);
    const focused = document.activeElement;
    for (const button of buttons) button.disabled = true;
    const before = status.textContent;
    const waiting = setTimeout(() => { if (status.textContent === before) fill(status, h("span", { class: "hint" }, "Waiting for the answer…")); }, WAITING_MS);
    try {
      await act(signal);
    } catch (error) {
      if (signal.aborted) return;
      fill(status, h("span", { class: "warning" }, sentence(error)));
      fill(below, needsKey(error) && keyForm(guarded(act)));
    } finally {
      clearTimeout(waiting);
      if (running === mine) for (const button of buttons) button.disabled = false;
      if (focused instanceof HTMLButtonElement && document.activeElement === document.body) focused.focus({ preventScroll: true });
    }
  };
  /** @type {(version: string, tensors: import("./tensors.js").Tensor[], signal: AbortSignal, bytes?: boolean) => Promise<{sent: import("./tensors.js").Sent, answer: Answer}>} */
  const predict = async (version, tensors, signal, bytes = false) => {
    const sent = request(pathOf(name, version), tensors, bytes);
    try {
      return { sent, answer: await answerOf(byVersion.get(version), sent, signal) };
    } catch (error) {
      if (bytes || !/request it in binary form/.test(sentence(error))) throw error; // for NaN and similar values
      return predict(version, tensors, signal, true);
    }
  };
  /** @type {import("./table_files.js").Ask} */
  const askRows = async (tensors, signal) => (await predict(choice.value, tensors, signal)).answer.outputs;
  const onPredict = guarded(async signal => {
    const tensors = form.read();
    keepInAddress(choice.value, tensors);
    const { sent, answer: got } = await predict(choice.value, tensors, signal);
    fill(status, ...headline(got), h("span", { class: "hint" }, ` · version ${choice.value}`));
    answer.scrollIntoView({ block: "nearest" });
    fill(below, ...answerDetails(got), h("details", {}, h("summary", {}, "This request in curl, Python and JavaScript"), snippets(sent)));
  });
  const onCompare = guarded(async signal => {
    const tensors = form.read();
    const answers = [];
    for (const version of [choice.value, against.value]) {
      try {
        answers.push((await predict(version, tensors, signal)).answer);
      } catch (error) {
        if (!signal.aborted && error instanceof Error) error.message = `Version ${version}: ${error.message}`;
        throw error;
      }
    }
    showComparison(status, below, answers[0], answers[1]);
  });
  const onRunHere = guarded(async signal => {
    const tensors = form.read(), version = byVersion.get(choice.value);
    const backend = /** @type {import("./browser.js").Backend} */ (here.value);
    const words = h("span", { class: "hint" }), bar = h("progress", { max: "1", "aria-label": "Loaded" });
    const say = (/** @type {string} */ text, /** @type {number | null} */ share) => {
      signal.throwIfAborted();
      if (words.textContent !== text) words.textContent = text; // announced once
      if (share === null) bar.removeAttribute("value");
      else bar.value = share;
      if (words.parentNode !== status) { fill(status, words); fill(below, bar); }
    };
    const server = (await predict(choice.value, tensors, signal)).answer;
    const session = await openHere({ model: name, version, files: given.files, release: given.runtime }, backend, say);
    const { outputs, seconds } = await session.run(tensors);
    signal.throwIfAborted();
    const raw = stringify(Object.fromEntries(outputs.map(one => [one.name, nested(one)])));
    const title = `This browser, ${session.backend === "webgpu" ? "WebGPU" : `WebAssembly, ${session.threads} ${session.threads > 1 ? "threads" : "thread"}`}`;
    const note = session.refused && `WebGPU cannot run this model: ${session.refused}`;
    showComparison(status, below, { ...server, title: `Server, version ${choice.value}` }, { title, note, outputs, names: server.names, raw, times: { total: seconds, queue: null, run: null, here: true } });
  });
  const onClear = () => {
    running.abort();
    form.clear();
    empty();
  };
  choice.addEventListener("change", guarded(useVersion));
  const runHere = h("button", { type: "button", onclick: onRunHere, hidden: true }, "Run in browser");
  const sendIt = h("button", { type: "submit", class: "main" }, "Predict");
  const compare = h("button", { type: "button", onclick: onCompare, hidden: ready.length < 2 }, "Compare");
  const buttons = [sendIt, compare, runHere];
  fill(here, ...backends().map(one => h("option", { value: one }, one === "webgpu" ? "WebGPU" : "WebAssembly")));
  await useVersion(left);
  return h("section", { class: "try", "aria-label": "Try it" },
    h("form", { onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); onPredict(); } },
      place,
      h("p", { class: "buttons" }, sendIt, h("button", { type: "button", onclick: onClear }, "Clear"), compare, runHere),
      h("p", {}, h("label", { for: "version" }, "Version "), choice,
        ready.length > 1 && h("label", { for: "against" }, " compared with "), ready.length > 1 && against),
      here.options.length > 1 && !runHere.hidden && h("p", {}, h("label", { for: "here" }, "In the browser with "), here)),
    answer);
}

/** Return only the processed texts of a made-up example, because the rest would look like data. @param {any} version @param {Record<string, unknown> | null} example */
function textsOf(version, example) {
  const texts = version.inputs.filter((/** @type {any} */ one) => isText(one.datatype) && one.processing && example && one.name in example);
  return texts.length ? Object.fromEntries(texts.map((/** @type {any} */ { name }) => [name, example?.[name]])) : null;
}

/** Return the inputs in the address if they fit a version, or null. @param {any} version @returns {Record<string, unknown> | null} */
function linkedInputs(version) {
  try {
    const read = parse(wordOf("input"));
    return version.inputs.every((/** @type {any} */ one) => one.name in read) ? read : null;
  } catch {
    return null;
  }
}

/** Keep the request in the address, so that the link can be shared, unless it is long. @param {string} version @param {import("./tensors.js").Tensor[]} tensors */
function keepInAddress(version, tensors) {
  const few = tensors.every(one => one.data.length <= MAX_LINKED);
  const text = few ? stringify(Object.fromEntries(tensors.map(one => [one.name, nested(one)]))) : "";
  keepWord("version", version);
  keepWord("input", text.length <= MAX_LINKED ? text : "");
}

/** @param {string} id @param {string[]} versions @param {string} chosen */
function versionChoice(id, versions, chosen) {
  const choice = h("select", { id }, ...versions.map(version => h("option", { value: version }, version)));
  choice.value = chosen;
  return choice;
}

/**
 * Send a request and read the answer.
 * @param {any} version @param {import("./tensors.js").Sent} sent @param {AbortSignal} left
 * @returns {Promise<Answer>}
 */
async function answerOf(version, sent, left) {
  const began = performance.now();
  const response = await ask(`${sent.path}?server_timing`, { ...sent.options, signal: left });
  const content = await response.arrayBuffer();
  const total = (performance.now() - began) / 1000;
  const { raw, outputs } = sent.bytes ? readBinary(response.headers, content) : readJson(new TextDecoder().decode(content), version.outputs);
  return { title: `Version ${version.version}`, outputs, names: namesOf(version), raw, times: { total, ...serverTimes(response) } };
}

/** @param {string} raw @param {import("./tensors.js").Spec[]} specs */
const readJson = (raw, specs) => ({ raw, outputs: outputsOf(parse(raw), specs) });

/** Read the server's times (https://www.w3.org/TR/server-timing/). @param {Response} response */
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
