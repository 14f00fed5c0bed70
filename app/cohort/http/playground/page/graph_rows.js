// Which node of a model loses its rows, as the graph shows.

/** @typedef {import("./graph_layout.js").Graph} Graph */
/** @typedef {import("./graph_layout.js").GraphNode} GraphNode */
/** @typedef {import("./graph_layout.js").Item} Item */

/**
 * What the server says of a model's rows; `node_path` leads to the node, from the main graph on.
 * @typedef {{verdict?: string, reason?: string, node?: string, node_path?: number[]}} Rows
 */
/** @typedef {{graph: number, node: GraphNode}} Step A node, and the number of its graph. */

/** @type {Record<string, string>} */
const WORDS = { refuted: "mixes rows", unknown: "rows not followed", "not deterministic": "not deterministic" };

/** The mark of a node, and of those whose graphs lead to it. */
export class RowMark {
  /** @param {Graph[]} graphs @param {Rows} rows */
  constructor(graphs, { verdict = "", reason = "", node = "", node_path: path = [] }) {
    this.word = WORDS[verdict] ?? "";
    this.reason = reason;
    this.words = node;
    /** @type {Step[]} */
    this.trail = this.word ? trailOf(graphs, path) : [];
    /** Where the node is; null where there is none, or where it is not drawn. */
    this.place = this.trail.length * 2 - 1 === path.length ? this.trail[this.trail.length - 1] : null;
  }

  /** Whether it is the node itself. @param {GraphNode | undefined} node */
  is(node) {
    return node !== undefined && node === this.place?.node;
  }

  /** Whether the node is in a graph of this one. @param {GraphNode | undefined} node */
  isInside(node) {
    return !this.is(node) && this.trail.some(step => step.node === node);
  }

  /** What is written at an item; "" for nothing. @param {Item} item */
  of({ node, block }) {
    if (this.is(node)) return this.word;
    return this.isInside(node) || block?.some(one => this.is(one) || this.isInside(one)) ? `${this.word} inside` : "";
  }
}

/** The node at the end of a path, after those whose graphs lead there, as far as they are drawn. @param {Graph[]} graphs @param {number[]} path */
function trailOf(graphs, path) {
  /** @type {Step[]} */
  const trail = [];
  for (let step = 0, graph = 0; step < path.length; step += 2) {
    const node = graphs[graph]?.nodes.find(one => one.at === path[step]);
    if (!node) break;
    trail.push({ graph, node });
    graph = node.graphs[path[step + 1]];
  }
  return trail;
}
