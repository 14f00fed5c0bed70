// The graph of a model version.

import { askJson, dataPathOf, pathOf } from "./api.js";
import { fill, h } from "./dom.js";
import { showGraphs } from "./graph_view.js";
import { link } from "./routes.js";

/**
 * Show the graph.
 * @param {HTMLElement} main
 * @param {string} name
 * @param {string} version
 * @param {AbortSignal} left Aborted when the page is left.
 */
export async function showGraph(main, name, version, left) {
  const place = h("section", { "aria-label": "Graph", class: "graph-place" }, h("p", { class: "hint", role: "status" }, "Drawing the graph …"));
  const known = await askJson(pathOf(name, version), { signal: left });
  fill(main,
    h("p", { class: "path" }, link("", "Models"), " / ", link(`models/${encodeURIComponent(name)}`, name), " / "),
    h("h1", {}, `Graph of ${name}, version ${version}`),
    place);
  const drawn = await askJson(`${dataPathOf(name, version)}/graph`, { signal: left });
  showGraphs(place, drawn, known.providers?.nodes, known.batching?.rows);
}
