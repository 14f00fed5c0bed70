// Facts about a model and its versions.

import { batchCurve, meter } from "./charts.js";
import { duration, h, readable } from "./dom.js";
import { signature } from "./models.js";
import { link } from "./routes.js";

/** Describe a model's rollout. @param {any} model */
export function aboutRollout({ rollout }) {
  if (!rollout) return [];
  return [h("section", { class: "about", "aria-label": "Rollout" }, h("h2", {}, "Rollout"),
    rollout.sticky && h("p", { class: "hint" }, `A caller keeps its variant by ${Object.entries(rollout.sticky).map(([kind, value]) => `the ${kind} ${value}`).join()}.`),
    ...rollout.variants.map((/** @type {any} */ one) => variant(one, rollout.baseline)),
    rollout.shadow?.batching_lost && h("p", { class: "warning" }, `The shadow cannot batch as the baseline does: ${rollout.shadow.batching_lost}`),
    rollout.shadow && h("p", {}, `Shadow: version ${rollout.shadow.version}, ${readable(rollout.shadow.compared)} compared, ${readable(rollout.shadow.disagreed)} disagreed${rollout.shadow.stopped ? `; stopped: ${rollout.shadow.detail || rollout.shadow.reason}` : ""}.`))];
}

/** A variant's share and the evidence against it. @param {any} variant @param {string} baseline */
function variant({ name, version, share, rolled_back, reason, detail, evidence, batching_lost }, baseline) {
  return h("div", { class: "variant" },
    meter(`${name} (version ${version})${name === baseline ? ", baseline" : ""}`, share, `${readable(share * 100)} %`),
    rolled_back && h("p", { class: "warning" }, `Rolled back: ${detail || reason}`),
    batching_lost && h("p", { class: "warning" }, `Cannot batch as the baseline does: ${batching_lost}`),
    ...Object.entries(evidence).map(([kind, seen]) => {
      const { requests, bad, log_e, threshold, baseline_rate } = /** @type {any} */ (seen);
      return meter(`${kind}: evidence against it`, Math.max(0, log_e) / threshold,
        `${readable(log_e)} of ${readable(threshold)} · ${bad} of ${requests} bad${baseline_rate === undefined ? "" : `, baseline ${readable(baseline_rate * 100)} %`}`);
    }));
}

/** Describe a version. @param {string} name @param {any} version @param {boolean} open */
export function aboutVersion(name, version, open) {
  const { state, reason, held_back } = version;
  return h("details", { class: "about", open }, h("summary", {}, h("h2", {}, `Version ${version.version}`), ` ${state}`),
    reason && h("p", { class: "warning" }, reason),
    held_back && h("p", { class: "warning" }, held_back),
    version.inputs && h("p", {}, link(`models/${encodeURIComponent(name)}/versions/${encodeURIComponent(version.version)}`, `Graph of version ${version.version}`)),
    version.inputs && loaded(version));
}

/** @param {any} version */
function loaded({ language_model, inputs, optional_inputs, outputs, metadata, providers, batching, profile, files, published }) {
  const { properties, opsets } = metadata;
  return h("div", { class: "facts" },
    facts("Inputs and outputs", [
      ...inputs.map((/** @type {any} */ one) => ["input", signature(one)]),
      ...optional_inputs.map((/** @type {any} */ one) => ["optional input", signature(one)]),
      ...outputs.map((/** @type {any} */ one) => ["output", signature(one)]),
    ]),
    language_model && facts("Language model", [
      ["context", `${readable(language_model.context_length)} tokens`],
      ["chat", language_model.chat ? "yes" : "no: it continues a text"],
      ["cache", language_model.cache_bytes ? `at most ${readable(language_model.cache_bytes / 2 ** 20)} MiB` : ""],
    ]),
    facts("Runs on", [
      ["wanted", providers.wanted.join(", ")],
      ["active", `${providers.active} (${providers.device})`],
      ...providers.fallbacks.map((/** @type {any} */ one) => [`${one.provider} was not used`, one.reason]),
      ["nodes", Object.entries(providers.nodes).map(([provider, count]) => `${count} on ${provider}`).join(", ")],
    ]),
    profile && h("section", {}, h("h3", {}, "Batches"),
      profile.doubt && h("p", { class: "warning" }, profile.doubt),
      h("p", {}, `Rows in the graph: ${[batching.rows.verdict, ...placesOf(batching.rows)].join("; ")}`),
      batching.reason && h("p", {}, batching.reason),
      batching.rows.to_batch && h("p", {}, `To allow batching: ${batching.rows.to_batch}.`),
      profile.filled_rows > 0 && h("p", {}, profile.change_seconds
        ? `Smaller runs are padded to ${profile.filled_rows} rows, because a change in the number of rows costs ${duration(profile.change_seconds)}.`
        : `A single row runs as ${profile.filled_rows} rows, because its result would differ otherwise (batching.exact).`),
      batching.exact_reason && h("p", {}, `Results in a batch may differ slightly from those of a single request: ${batching.exact_reason}.`),
      batchCurve(profile.seconds_by_rows, batching.max_batch_size)),
    facts("Model", [
      ["producer", [metadata.producer, metadata.producer_version].filter(Boolean).join(" ")],
      ["opset", Object.entries(opsets).map(([domain, number]) => `${domain || "ai.onnx"} ${number}`).join(", ")],
      ["IR", String(metadata.ir_version)],
      ["graph", metadata.graph_name],
      ...Object.entries(properties),
    ]),
    facts("Files", Object.entries(files).map(([file, { sha256 }]) => [file, `SHA-256 ${sha256}`])),
    published && facts("Manifest", flattened(published)));
}

/** Describe where rows are, for tensors whose rows are not along axis 0. @param {any} rows @returns {string[]} */
const placesOf = ({ input_axes, output_axes }) => [["input", input_axes], ["output", output_axes]].flatMap(([kind, axes]) => Object.entries(axes)
  .filter(([, axis]) => axis !== 0)
  .map(([name, axis]) => `${kind} ${name} ${axis === null ? "once for the whole run" : `along axis ${axis}`}`));

/** Make a list of names and values, which are text. @param {string} title @param {[string, string][]} pairs */
function facts(title, pairs) {
  const known = pairs.filter(([, value]) => value);
  return known.length ? h("section", {}, h("h3", {}, title), h("dl", {}, ...known.flatMap(([term, text]) => [h("dt", {}, term), h("dd", {}, text)]))) : null;
}

/** @param {any} value @param {string} path @returns {[string, string][]} */
function flattened(value, path = "") {
  if (value === null || value === "") return [];
  if (typeof value !== "object") return [[path, String(value)]];
  if (Array.isArray(value) && value.every(one => typeof one !== "object")) return [[path, value.join(", ")]];
  return Object.entries(value).flatMap(([name, inner]) => flattened(inner, path ? `${path} ${name}` : name));
}
