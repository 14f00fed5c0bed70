// All models as cards, whose details are loaded when they become visible.

import { askJson, pathOf } from "./api.js";
import { fill, h, sentence } from "./dom.js";
import { keepWord, link, wordOf } from "./routes.js";

const AT_ONCE = 4, MANY = 8, MAX_PROBLEMS = 3;

/** Queued tasks, of which a few run at a time. @type {(() => Promise<void>)[]} */
const waiting = [];
let running = 0;

/** @param {() => Promise<void>} task */
function soon(task) {
  waiting.push(task);
  next();
}

function next() {
  while (running < AT_ONCE && waiting.length) {
    running++;
    /** @type {() => Promise<void>} */ (waiting.shift())().finally(() => { running--; next(); });
  }
}

/**
 * Show the models.
 * @param {HTMLElement} main
 * @param {AbortSignal} left Aborted when the page is left.
 */
export async function showModels(main, left) {
  /** @type {{models: any[]}} */
  const { models } = await askJson("models", { signal: left });
  waiting.length = 0;
  const seen = new IntersectionObserver(entries => {
    for (const entry of entries)
      if (entry.isIntersecting) {
        seen.unobserve(entry.target);
        /** @type {any} */ (entry.target).lookedAt();
      }
  }, { rootMargin: "200px" });
  left.addEventListener("abort", () => { seen.disconnect(); waiting.length = 0; });
  const cards = models.map(model => ({ model, element: card(model, left) }));
  const list = h("div", { class: "cards" }, ...cards.map(({ element }) => element));
  const found = h("p", { class: "hint", role: "status" });
  const narrow = () => {
    const text = search.value.trim().toLowerCase();
    let shown = 0;
    for (const { model, element } of cards) {
      element.hidden = !model.name.toLowerCase().includes(text);
      if (!element.hidden) shown++;
    }
    found.textContent = text ? `${shown} of ${cards.length}` : "";
  };
  const search = h("input", { type: "search", id: "search", placeholder: "Name", value: wordOf("search"), oninput: () => {
    keepWord("search", search.value.trim());
    narrow();
  } });
  if (models.length > MANY) narrow();
  fill(main,
    h("h1", {}, "Models"),
    models.length > MANY && h("p", { class: "search" }, h("label", { for: "search" }, `Search ${models.length} models`), search, found),
    models.length ? list : h("p", {}, "There are no models yet. Add NAME/VERSION/model.onnx to the models folder; the server finds it within seconds."));
  for (const { element } of cards) seen.observe(element);
}

/** @param {any} model @param {AbortSignal} left */
function card(model, left) {
  const body = h("div", { class: "body" }, h("p", { class: "hint" }, "…"));
  const element = h("article", { class: "card", "aria-label": model.name },
    h("h2", {}, link(`models/${encodeURIComponent(model.name)}`, model.name)),
    h("p", {}, ...model.versions.map((/** @type {any} */ one) => badge(one, model.default_version))),
    body);
  Object.assign(element, { lookedAt: () => soon(async () => {
    if (left.aborted) return;
    try {
      fill(body, ...summary(await askJson(pathOf(model.name), { signal: left })));
    } catch (error) {
      if (!left.aborted) fill(body, h("p", { class: "hint" }, sentence(error)));
    }
  }) });
  return element;
}

/** Make a badge with a version's number and state. @param {any} version @param {string | null} answering */
export function badge({ version, state, reason }, answering) {
  return h("span", { class: `badge ${state.toLowerCase()}`, title: reason || undefined },
    `${version} ${state}`, version === answering && h("span", { class: "hint" }, " · default"));
}

/** Return the contents of a card. @param {any} model */
function summary(model) {
  const version = model.versions.find((/** @type {any} */ one) => one.version === model.default_version) ?? model.versions.find((/** @type {any} */ one) => one.inputs);
  return [
    version?.metadata?.description && h("p", {}, version.metadata.description.slice(0, 200)),
    version?.inputs && h("p", { class: "signature" }, `${names(version.inputs)} → ${names(version.outputs)}`),
    version?.providers && h("p", {}, `on ${version.providers.active}`, version.providers.fell_back && h("strong", { class: "warning" }, ` · wanted ${version.providers.wanted.join(", ")}`)),
    model.rollout && h("p", {}, "rollout: ", model.rollout.variants.map((/** @type {any} */ one) => `${one.name} ${Math.round(one.share * 100)} %${one.rolled_back ? " (rolled back)" : ""}`).join(", ")),
    ...problems(model),
  ];
}

/** Return the reasons why a few versions are not ready. @param {any} model */
export const problems = ({ versions }) => versions
  .filter((/** @type {any} */ one) => one.reason && one.state !== "READY")
  .slice(0, MAX_PROBLEMS)
  .map((/** @type {any} */ one) => h("p", { class: "warning" }, `Version ${one.version}: ${one.reason}`));

/** @param {import("./tensors.js").Spec[]} specs */
const names = specs => specs.slice(0, 4).map(signature).join(", ") + (specs.length > 4 ? ", …" : "");

/** @param {import("./tensors.js").Spec} spec */
export const signature = ({ name, datatype, shape }) => `${name} ${datatype} [${(shape ?? ["?"]).map(size => size ?? "?").join(", ")}]`;
