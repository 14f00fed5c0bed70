// A bounded burst of requests from this page.

import { ask, askJson, dataPathOf, pathOf } from "./api.js";
import { duration, fill, h, readable, sentence } from "./dom.js";

const AT_ONCE = 64; // the browser sends six at a time and queues the others
const MAX = 5000;

/**
 * Make a form that sends requests to a model.
 * @param {any[]} models The models from `/models`.
 * @param {AbortSignal} left Aborted when the page is left.
 */
export function loadForm(models, left) {
  const ready = models.filter(model => model.default_version);
  const choice = h("select", { id: "load-model" }, ...ready.map(model => h("option", { value: model.name }, model.name)));
  const count = h("input", { id: "load-count", type: "number", min: "1", max: String(MAX), value: "500" });
  const bar = h("progress", { max: "1", value: "0", hidden: true, "aria-label": "Requests sent" });
  const said = h("p", { role: "status" });
  const button = h("button", { type: "submit", class: "main" }, "Send load");
  let stopping = new AbortController();
  const stop = h("button", { type: "button", hidden: true, onclick: () => stopping.abort() }, "Stop");
  const send = async () => {
    stopping = new AbortController();
    button.disabled = true;
    bar.hidden = stop.hidden = false;
    try {
      const model = ready.find(one => one.name === choice.value);
      const { example } = await askJson(dataPathOf(model.name, model.default_version), { signal: left });
      if (!example) throw new Error(`${model.name} has no example to send: its inputs are too large or not known.`);
      const total = Math.max(1, Math.min(MAX, Math.floor(Number(count.value)) || 1));
      fill(said, describe(await burst(`${pathOf(model.name)}/predict`, JSON.stringify({ inputs: example }), total, AbortSignal.any([left, stopping.signal]), share => { bar.value = share; })));
    } catch (error) {
      if (!left.aborted) fill(said, h("span", { class: "warning" }, sentence(error)));
    } finally {
      button.disabled = false;
      if (document.activeElement === stop) button.focus();
      bar.hidden = stop.hidden = true;
    }
  };
  return h("form", { class: "load", "aria-label": "Load", onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); send(); } },
    h("label", { for: "load-model" }, "Model"), choice,
    h("label", { for: "load-count" }, `Requests, at most ${MAX}`), count, button, stop, bar, said);
}

/**
 * Send requests, a few at a time.
 * @param {string} path @param {string} body @param {number} total @param {AbortSignal} ended
 * @param {(share: number) => void} progress
 */
async function burst(path, body, total, ended, progress) {
  /** @type {number[]} */
  const waits = [];
  let [sent, failed, why] = [0, 0, ""];
  const began = performance.now();
  const one = async () => {
    while (sent < total && !ended.aborted) {
      sent++;
      const start = performance.now();
      try {
        await (await ask(path, { method: "POST", headers: { "content-type": "application/json" }, body, signal: ended })).arrayBuffer();
        waits.push((performance.now() - start) / 1000);
      } catch (error) {
        if (ended.aborted) break;
        failed++;
        why = sentence(error);
      }
      progress((waits.length + failed) / total);
    }
  };
  await Promise.all(Array.from({ length: Math.min(AT_ONCE, total) }, one));
  return { waits: waits.sort((first, second) => first - second), failed, why, seconds: (performance.now() - began) / 1000 };
}

/** @param {{waits: number[], failed: number, why: string, seconds: number}} done */
function describe({ waits, failed, why, seconds }) {
  const at = (/** @type {number} */ share) => duration(waits[Math.min(waits.length - 1, Math.floor(share * waits.length))] ?? 0);
  const answered = `${waits.length} requests answered in ${duration(seconds)}: ${readable(Math.round(waits.length / seconds))} a second`;
  return `${answered}${waits.length ? `; half within ${at(0.5)}, 99 % within ${at(0.99)}, including the wait in the browser` : ""}.${failed ? ` ${failed} failed: ${why}` : ""}`;
}
