// The view of a model's graphs: drawing, moving, searching, and details of nodes.

import { fill, h, svg } from "./dom.js";
import { HEIGHT, collect, layOut, short } from "./graph_layout.js";
import { RowMark } from "./graph_rows.js";

/** @typedef {import("./graph_layout.js").Graph} Graph */
/** @typedef {import("./graph_layout.js").GraphNode} GraphNode */
/** @typedef {import("./graph_layout.js").Item} Item */
/** @typedef {import("./graph_layout.js").Edge} Edge */

const FAR = 0.45, MANY = 300, MAX_LISTED = 100;

/**
 * Show the graphs of a model in `place`.
 * @param {HTMLElement} place
 * @param {{graphs: Graph[], left_out: string}} model The main graph is first.
 * @param {Record<string, number>} [running] Nodes by provider, if known.
 * @param {import("./graph_rows.js").Rows} [rows] The result of the row analysis.
 */
export function showGraphs(place, model, running = {}, rows = {}) {
  const drawing = new Drawing(model.graphs, running, new RowMark(model.graphs, rows));
  const search = h("input", { type: "search", placeholder: "Find an operator, name or value", "aria-label": "Find", oninput: () => { if (!search.value) found.textContent = ""; } });
  const found = h("span", { role: "status", class: "hint" });
  const find = (/** @type {Event} */ event) => {
    event.preventDefault();
    found.textContent = search.value.trim() ? `${drawing.find(search.value.trim().toLowerCase()).toLocaleString("en")} found` : "";
  };
  fill(place,
    h("div", { class: "graph-tools" },
      h("form", { onsubmit: find }, search, found),
      drawing.folding,
      h("span", { class: "graph-buttons" },
        h("button", { "aria-label": "Smaller", onclick: () => drawing.zoom(1 / 1.3) }, "−"),
        h("button", { "aria-label": "Larger", onclick: () => drawing.zoom(1.3) }, "+"),
        h("button", { onclick: () => drawing.fit() }, "Fit"))),
    drawing.path,
    model.left_out && h("p", { class: "warning" }, model.left_out),
    h("div", { class: "graph" }, drawing.canvas, drawing.details));
  drawing.show(0);
}

/** One graph at a time, with the chosen item. */
class Drawing {
  /** @param {Graph[]} graphs @param {Record<string, number>} running @param {RowMark} rows */
  constructor(graphs, running, rows) {
    this.graphs = graphs;
    this.running = running;
    this.rows = rows;
    this.graph = graphs[0];
    /** @type {Item[]} */
    this.items = [];
    /** @type {Edge[]} */
    this.edges = [];
    /** @type {Item | null} */
    this.chosen = null;
    /** @type {Set<number>} */
    this.opened = new Set();
    /** @type {SVGElement[]} The boxes of items, and the lines of edges. */
    this.boxes = [];
    /** @type {SVGElement[]} */
    this.lines = [];
    this.scale = 1;
    this.left = this.top = 0;

    this.view = svg("g");
    this.canvas = svg("svg", { class: "graph-canvas", role: "group", "aria-label": "Operators; arrow keys lead from one to the next" }, this.view);
    this.details = h("aside", { class: "graph-details", "aria-live": "polite" });
    this.path = h("nav", { class: "graph-path", "aria-label": "Graphs" });
    this.fold = h("input", { type: "checkbox", onchange: () => this.redraw() });
    this.folding = h("label", {}, this.fold, " fold repeated blocks");
    this.listen();
  }

  /** @param {number} place The graph's number. */
  show(place) {
    this.graph = this.graphs[place];
    this.opened = new Set();
    fill(this.path, ...(place ? [0, place] : []).map(one => h("button", { class: "quiet", onclick: () => this.show(one) }, short(this.graphs[one].title, 40))));
    this.folding.hidden = !this.graph.blocks.length;
    this.fold.checked = this.graph.blocks.length > 0;
    this.redraw();
  }

  redraw() {
    this.items = collect(this.graph, this.fold.checked, this.opened);
    this.edges = layOut(this.items);
    this.draw();
    this.choose(null);
    this.begin();
  }

  draw() {
    const main = Object.entries(this.running).sort(([, one], [, other]) => other - one)[0]?.[0];
    this.lines = this.edges.map(edge => svg("path", { class: "edge", d: curve(edge) }));
    this.boxes = this.items.map(item => {
      const elsewhere = item.node?.provider && main && item.node.provider !== main;
      const mark = this.rows.of(item), marked = this.rows.is(item.node) ? " marked" : mark && " leads";
      return svg("g", { class: `node ${item.kind}${elsewhere ? " elsewhere" : ""}${marked}`, tabindex: item.place ? -1 : 0, role: "button", "aria-label": named(item, mark), "data-place": item.place, transform: `translate(${item.x},${item.y})` },
        svg("rect", { x: -item.width / 2, y: -HEIGHT / 2, width: item.width, height: HEIGHT, rx: item.end ? HEIGHT / 2 : 5 }, mark && svg("title", {}, this.rows.reason)),
        svg("text", { y: item.shape ? -7 : 0 }, short(item.label)),
        item.shape && svg("text", { y: 9, class: "shape" }, short(item.shape)),
        mark && svg("text", { y: -HEIGHT / 2 - 9, class: "mark" }, ` ${mark}`)); // the space separates it from the label for screen readers
    });
    fill(this.view, svg("g", {}, ...this.lines), svg("g", {}, ...this.boxes));
  }

  // --- The visible part

  move() {
    this.view.setAttribute("transform", `translate(${this.left},${this.top}) scale(${this.scale})`);
    this.canvas.classList.toggle("far", this.scale < FAR && this.items.length > MANY);
  }

  /** @param {number} factor @param {number} [x] @param {number} [y] The fixed point. */
  zoom(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const next = Math.min(4, Math.max(0.002, this.scale * factor));
    this.left = x - ((x - this.left) * next) / this.scale;
    this.top = y - ((y - this.top) * next) / this.scale;
    this.scale = next;
    this.move();
  }

  /** Show the whole graph. */
  fit() {
    if (!this.items.length) return;
    const bounds = this.items.reduce((all, one) => ({
      left: Math.min(all.left, one.x - one.width / 2), right: Math.max(all.right, one.x + one.width / 2),
      top: Math.min(all.top, one.y), bottom: Math.max(all.bottom, one.y),
    }), { left: Infinity, right: -Infinity, top: Infinity, bottom: -Infinity });
    const { clientWidth, clientHeight } = this.canvas;
    this.scale = Math.max(0.002, Math.min(1.2, clientWidth / (bounds.right - bounds.left + 40), clientHeight / (bounds.bottom - bounds.top + HEIGHT + 40)));
    this.left = clientWidth / 2 - (this.scale * (bounds.left + bounds.right)) / 2;
    this.top = clientHeight / 2 - (this.scale * (bounds.top + bounds.bottom)) / 2;
    this.move();
  }

  /** Show the whole graph if it is readable, otherwise its beginning. */
  begin() {
    this.fit();
    if (this.scale >= 0.75 || !this.items.length) return;
    this.scale = 1;
    this.left = this.canvas.clientWidth / 2 - this.scale * this.items[0].x;
    this.top = HEIGHT - this.scale * this.items[0].y;
    this.move();
  }

  /** @param {Item} item */
  center(item) {
    this.scale = Math.max(this.scale, 0.8);
    this.left = this.canvas.clientWidth / 2 - this.scale * item.x;
    this.top = this.canvas.clientHeight / 2 - this.scale * item.y;
    this.move();
  }

  // --- Details

  /** @param {Item | null} item */
  choose(item) {
    if (this.chosen) this.boxes[this.chosen.place]?.classList.remove("picked");
    this.edges.forEach((edge, place) => this.lines[place].classList.toggle("picked", item !== null && (edge.from === item || edge.to === item)));
    this.chosen = item;
    if (item) this.boxes[item.place].classList.add("picked");
    fill(this.details, ...(item === null ? this.overview() : item.end ? this.aboutEnd(item) : item.block ? this.aboutBlock(item, item.block) : item.node ? this.aboutNode(item.node) : []));
  }

  overview() {
    const { graph } = this, providers = Object.entries(this.running);
    return [
      h("h2", {}, short(graph.title, 60)),
      h("p", {}, `${counted(graph.nodes.length)}`),
      ...(providers.length && graph === this.graphs[0] ? [h("h3", {}, "Runs on"), ...providers.map(([provider, count]) => h("p", {}, `${provider}: ${counted(count)}`))] : []),
      providers.length > 1 && h("p", { class: "hint" }, `Nodes that do not run on ${providers.sort(([, one], [, other]) => other - one)[0][0]} have a thick border.`),
      ...this.aboutRows(),
      ...this.values("Inputs", graph.inputs), ...this.values("Outputs", graph.outputs),
      h("p", { class: "hint" }, "Choose a node for its details. Drag to move. Use the wheel or two fingers to zoom."),
    ];
  }

  /** Explain why requests do not share runs, and link to the node that causes it. */
  aboutRows() {
    const { word, reason, words, place } = this.rows;
    if (!word) return [];
    return [h("h3", {}, "Rows"), h("p", { class: "warning" }, reason), place && h("button", { onclick: () => this.goTo(place) }, `Show ${short(words, 40)}`)];
  }

  /** Show a node, unfolded. @param {import("./graph_rows.js").Step} step */
  goTo({ graph, node }) {
    if (this.graph !== this.graphs[graph]) this.show(graph);
    const block = this.items.find(one => one.block?.includes(node));
    if (block) this.unfold(block);
    const item = this.items.find(one => one.node === node);
    if (!item) return;
    this.focus(item);
    this.center(item);
  }

  /** @param {Item} block */
  unfold(block) {
    this.opened.add(block.first);
    this.redraw();
  }

  /** @param {Item} item */
  aboutEnd(item) {
    return [h("h2", {}, item.end ?? ""), h("p", {}, this.value(item.end === "Input" ? item.out[0] : item.in[0]))];
  }

  /** @param {Item} item @param {GraphNode[]} block */
  aboutBlock(item, block) {
    /** @type {Map<string, number>} */
    const counts = new Map();
    for (const { op } of block) counts.set(op, (counts.get(op) ?? 0) + 1);
    const unfold = () => {
      this.unfold(item);
      const first = this.items.find(one => one.node === block[0]);
      if (first) this.focus(first);
    };
    return [h("h2", {}, item.label), this.rows.of(item) && h("p", { class: "warning" }, this.rows.reason), h("button", { onclick: unfold }, "Unfold"), h("h3", {}, "Operators"), ...[...counts].map(([op, count]) => h("p", {}, `${count} × ${op}`))];
  }

  /** @param {GraphNode} node */
  aboutNode(node) {
    return [
      h("h2", {}, node.op),
      node.domain && h("p", { class: "hint" }, node.domain),
      node.name && h("p", {}, node.name),
      (this.rows.is(node) || this.rows.isInside(node)) && h("p", { class: "warning" }, this.rows.reason),
      h("p", {}, this.where(node)),
      ...node.graphs.filter(place => this.graphs[place]).map(place => h("button", { onclick: () => this.show(place) }, `Open ${short(this.graphs[place].title, 40)}`)),
      ...this.values("Inputs", node.in), ...this.values("Outputs", node.out),
      node.attributes.length > 0 && h("h3", {}, "Attributes"),
      ...node.attributes.map(([name, text]) => h("p", {}, `${name}: ${text}`)),
    ];
  }

  /** Return where a node runs, if the runtime reports it. @param {GraphNode} node */
  where(node) {
    if (node.provider) return `runs on ${node.provider}`;
    const providers = Object.keys(this.running);
    if (this.graph !== this.graphs[0] || !providers.length) return "";
    if (node.name) return "does not run separately: it was computed when the model was loaded, or is part of another node";
    return providers.length === 1 ? `runs on ${providers[0]}` : "";
  }

  /** @param {string} title @param {number[]} values */
  values(title, values) {
    return [
      h("h3", {}, title), ...values.slice(0, MAX_LISTED).map(one => h("p", {}, this.value(one))),
      values.length > MAX_LISTED && h("p", { class: "hint" }, `and ${(values.length - MAX_LISTED).toLocaleString("en")} more`),
    ];
  }

  /** Describe a value. @param {number} number */
  value(number) {
    const [name, type] = this.graph.values[number], weight = this.graph.weights[number];
    return `${name || "(none)"}  ${weight ? `weight ${weight}` : type}`.trim();
  }

  /** Go to the next item that contains `wanted`. Returns the number of such items. @param {string} wanted In lower case. */
  find(wanted) {
    const has = (/** @type {GraphNode} */ node) => [node.op, node.name, ...[...node.in, ...node.out].map(one => this.graph.values[one][0])].some(text => text.toLowerCase().includes(wanted));
    const hits = this.items.filter(item => (item.node ? has(item.node) : item.block ? item.block.some(has) : item.label.toLowerCase().includes(wanted)));
    if (!hits.length) this.choose(null);
    else {
      const next = hits[((this.chosen ? hits.indexOf(this.chosen) : -1) + 1) % hits.length];
      this.choose(next);
      this.center(next);
    }
    return hits.length;
  }

  // --- Input events

  listen() {
    const { canvas } = this;
    canvas.addEventListener("wheel", event => {
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      this.zoom(Math.exp(-event.deltaY / 400), event.clientX - box.left, event.clientY - box.top);
    }, { passive: false });
    this.listenToPointers();
    canvas.addEventListener("keydown", event => {
      const act = { "+": () => this.zoom(1.3), "-": () => this.zoom(1 / 1.3), 0: () => this.fit() }[event.key];
      const item = this.itemAt(event.target), next = item && neighbour(item, event.key, this.items);
      if (act) act();
      else if (next) this.focus(next);
      else if (item && (event.key === "Enter" || event.key === " ")) this.choose(item);
      else if (event.key === "Escape") this.choose(null);
      else return;
      event.preventDefault();
    });
  }

  /** Move the drawing or choose a node with one pointer, zoom with two. */
  listenToPointers() {
    const { canvas } = this;
    /** @type {Map<number, {x: number, y: number}>} */
    const held = new Map();
    let moved = 0;
    const spread = () => {
      const [one, other] = [...held.values()];
      return Math.hypot(one.x - other.x, one.y - other.y);
    };
    canvas.addEventListener("pointerdown", event => {
      if (event.button) return;
      if (!held.size) moved = 0;
      held.set(event.pointerId, { x: event.clientX, y: event.clientY });
    });
    canvas.addEventListener("pointermove", event => {
      const before = held.get(event.pointerId);
      if (!before) return;
      if (!event.buttons) { held.delete(event.pointerId); return; } // it was released elsewhere
      const apart = held.size === 2 ? spread() : 0, x = event.clientX - before.x, y = event.clientY - before.y;
      held.set(event.pointerId, { x: event.clientX, y: event.clientY });
      moved += Math.abs(x) + Math.abs(y);
      if (moved <= 3) return;
      canvas.setPointerCapture(event.pointerId); // not earlier, because a click belongs to the element below
      this.left += x / held.size;
      this.top += y / held.size;
      const box = canvas.getBoundingClientRect(), points = [...held.values()];
      const middle = (/** @type {"x" | "y"} */ axis) => points.reduce((sum, one) => sum + one[axis], 0) / points.length;
      if (apart) this.zoom(spread() / apart, middle("x") - box.left, middle("y") - box.top);
      else this.move();
    });
    for (const end of /** @type {const} */ (["pointerup", "pointercancel"]))
      canvas.addEventListener(end, event => {
        if (held.delete(event.pointerId) && end === "pointerup" && moved <= 3) this.choose(this.itemAt(event.target));
      });
  }

  /** @param {EventTarget | null} target @returns {Item | null} */
  itemAt(target) {
    const box = target instanceof Element ? /** @type {SVGElement | null} */ (target.closest(".node")) : null;
    return box ? this.items[Number(box.dataset.place)] : null;
  }

  /** Focus an item for keyboard users. It becomes the only item that Tab reaches. @param {Item} item */
  focus(item) {
    for (const box of this.view.querySelectorAll("[tabindex='0']")) box.setAttribute("tabindex", "-1");
    this.boxes[item.place].setAttribute("tabindex", "0");
    this.boxes[item.place].focus({ preventScroll: true });
    this.choose(item);
    const x = this.left + this.scale * item.x, y = this.top + this.scale * item.y, { clientWidth, clientHeight } = this.canvas;
    if (this.scale < 0.4 || x < 60 || y < 30 || x > clientWidth - 60 || y > clientHeight - 30) this.center(item);
  }
}

/** Return the accessible name of an item. @param {Item} item @param {string} mark */
function named({ label, shape, node, end }, mark) {
  return [[short(label), short(shape), mark].filter(Boolean).join(" "), end?.toLowerCase(), node?.name, node?.provider && `runs on ${node.provider}`].filter(Boolean).join(", ");
}

/** Return the item that an arrow key leads to. @param {Item} item @param {string} key @param {Item[]} items @returns {Item | null} */
function neighbour(item, key, items) {
  if (key === "Home") return items[0];
  if (key === "End") return items[items.length - 1];
  const along = { ArrowDown: "down", ArrowUp: "up" }[key];
  if (along === "down" || along === "up") {
    let point = /** @type {import("./graph_layout.js").Point} */ (item);
    do {
      const near = point[along];
      if (!near.length) return null;
      const from = point;
      point = near.reduce((best, one) => (Math.abs(one.x - from.x) < Math.abs(best.x - from.x) ? one : best));
    } while (!("label" in point));
    return /** @type {Item} */ (point);
  }
  const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
  if (!step) return null;
  const beside = items.filter(one => one.rank === item.rank && (one.x - item.x) * step > 0);
  return beside.length ? beside.reduce((best, one) => (Math.abs(one.x - item.x) < Math.abs(best.x - item.x) ? one : best)) : null;
}

/** @param {number} nodes */
const counted = nodes => `${nodes.toLocaleString("en")} ${nodes === 1 ? "node" : "nodes"}`;

/** Return the path of an edge. @param {Edge} edge */
function curve({ points }) {
  const last = points.length - 1;
  return points.map((point, place) => {
    if (!place) return `M${point.x},${point.y + HEIGHT / 2}`;
    const before = points[place - 1];
    const from = place === 1 ? before.y + HEIGHT / 2 : before.y, to = place === last ? point.y - HEIGHT / 2 : point.y;
    const middle = (from + to) / 2;
    return `C${before.x},${middle} ${point.x},${middle} ${point.x},${to}`;
  }).join("");
}
