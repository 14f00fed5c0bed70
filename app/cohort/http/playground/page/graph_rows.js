// The node that mixes a model's rows, according to the graph.

/** @typedef {import("./graph_layout.js").Graph} Graph */
/** @typedef {import("./graph_layout.js").GraphNode} GraphNode */
/** @typedef {import("./graph_layout.js").Item} Item */

/**
 * The server's row analysis of a model. `node_path` leads from the main graph to the node.
 * @typedef {{verdict?: string, reason?: string, node?: string, node_path?: number[]}} Rows
 */
/** @typedef {{graph: number, node: GraphNode}} Step A node and the number of its graph. */

/** @type {Record<string, string>} */
const WORDS = { refuted: "mixes rows", unknown: "rows not followed", "not deterministic": "not deterministic" };

/** The mark of a node, and of the nodes whose graphs contain it. */
export class RowMark {
  /** @param {Graph[]} graphs @param {Rows} rows */
  constructor(graphs, { verdict = "", reason = "", node = "", node_path: path = [] }) {
    this.word = WORDS[verdict] ?? "";
    this.reason = reason;
    this.words = node;
    /** @type {Step[]} */
    this.trail = this.word ? trailOf(graphs, path) : [];
    /** The node's place, or null if it does not exist or is not drawn. */
    this.place = this.trail.length * 2 - 1 === path.length ? this.trail[this.trail.length - 1] : null;
  }

  /** Return true for the node itself. @param {GraphNode | undefined} node */
  is(node) {
    return node !== undefined && node === this.place?.node;
  }

  /** Return true if the marked node is in a graph of `node`. @param {GraphNode | undefined} node */
  isInside(node) {
    return !this.is(node) && this.trail.some(step => step.node === node);
  }

  /** Return the text at an item, or "". @param {Item} item */
  of({ node, block }) {
    if (this.is(node)) return this.word;
    return this.isInside(node) || block?.some(one => this.is(one) || this.isInside(one)) ? `${this.word} inside` : "";
  }
}

/** Return the drawn nodes on a path: the node at its end, after those whose graphs contain it. @param {Graph[]} graphs @param {number[]} path */
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
