// The layout of a graph's nodes in layers, from its inputs down to its outputs.

/**
 * A graph from the server. Values are indexes into `values`.
 * @typedef {object} Graph
 * @property {string} title
 * @property {number[]} inputs
 * @property {number[]} outputs
 * @property {GraphNode[]} nodes
 * @property {Record<string, string>} weights Types by value index.
 * @property {[number, number, number][]} blocks Repeated blocks: first node, length, repetitions.
 * @property {[string, string][]} values Names and types.
 */
/** @typedef {{at: number, op: string, domain: string, name: string, in: number[], out: number[], attributes: [string, string][], provider: string, graphs: number[]}} GraphNode */

/**
 * A point of an edge: an item, or a bend of a long edge.
 * @typedef {{rank: number, width: number, up: Point[], down: Point[], order: number, wish: number, x: number, y: number}} Point
 */
/**
 * A box: a node, a block that replaces repeated nodes, or an end of the graph.
 * @typedef {Point & {label: string, shape: string, kind: string, in: number[], out: number[], place: number, node?: GraphNode, block?: GraphNode[], first: number, end?: "Input" | "Output"}} Item
 */
/** @typedef {{from: Item, to: Item, points: Point[]}} Edge */

/** Height of an item, and gaps between items and layers. */
export const HEIGHT = 38;
const GAP_X = 18, GAP_Y = 34, MAX_BENDS = 30000;

/** @type {[string, RegExp][]} */
const KINDS = [
  ["control", /^(If|Loop|Scan|SequenceMap)$/],
  ["compute", /Conv|MatMul|Gemm|Attention|^(LSTM|GRU|RNN|Einsum)$|^(TreeEnsemble|SVM|Linear)/],
  ["norm", /Norm|Softmax|[Qq]uantize/],
  ["function", /Relu|Gelu|Sigmoid|Tanh|Erf|Elu|Pool|Swish|Mish|Softplus|Clip|Exp|Log|Sqrt|Pow|^(Add|Sub|Mul|Div)$/],
  ["move", /Reshape|Transpose|Gather|Concat|Slice|Split|Squeeze|Shape|Cast|Expand|Identity|Flatten|Tile|Pad|Constant/],
];

/** Return the kind of an operator, which determines its color. @param {string} op */
const kindOf = op => KINDS.find(([, pattern]) => pattern.test(op))?.[0] ?? "other";

/** Shorten a long text. @param {string} text @param {number} [most] */
export const short = (text, most = 26) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

/** Return the shape of a value such as `[N, 3]`, or "" if it is not known. @param {Graph} graph @param {number} value */
const shapeOf = (graph, value) => graph.values[value]?.[1].match(/\[.*\]$/)?.[0] ?? "";

/**
 * Return the items in the order of the graph's nodes.
 * @param {Graph} graph
 * @param {boolean} folds True if blocks replace repeated nodes.
 * @param {Set<number>} opened The first nodes of unfolded blocks.
 */
export function collect(graph, folds, opened) {
  /** @type {Map<number, {length: number, time: number, times: number}>} */
  const blockAt = new Map();
  for (const [start, length, times] of folds ? graph.blocks : [])
    for (let time = 0; time < times; time++)
      if (!opened.has(start + time * length)) blockAt.set(start + time * length, { length, time, times });
  /** @type {Item[]} */
  const items = [];
  const add = (/** @type {Partial<Item> & {label: string, kind: string, in: number[], out: number[]}} */ item) => {
    const shape = shapeOf(graph, item.out[0] ?? item.in[0]);
    items.push({
      rank: 0, shape, width: Math.max(56, 14 + 7.2 * short(item.label).length, 14 + 5.8 * short(shape).length), up: [], down: [], order: 0, wish: 0, x: 0, y: 0, first: 0, ...item, place: items.length,
    });
  };
  for (const value of graph.inputs) add({ label: graph.values[value][0], kind: "end", end: "Input", in: [], out: [value] });
  for (let place = 0; place < graph.nodes.length; place++) {
    const block = blockAt.get(place), node = graph.nodes[place];
    if (!block) {
      add({ label: node.op, kind: node.graphs.length ? "control" : kindOf(node.op), node, in: node.in, out: node.out });
      continue;
    }
    const inside = graph.nodes.slice(place, place + block.length), made = new Set(inside.flatMap(one => one.out));
    add({
      label: `block ${block.time + 1} of ${block.times} · ${block.length} nodes`, kind: "block", block: inside, first: place,
      in: [...new Set(inside.flatMap(one => one.in))].filter(one => !made.has(one)), out: [...made],
    });
    place += block.length - 1;
  }
  for (const value of graph.outputs) add({ label: graph.values[value][0], kind: "end", end: "Output", in: [value], out: [] });
  return items;
}

/** Place the items and the edges between them. @param {Item[]} items @returns {Edge[]} */
export function layOut(items) {
  const links = linksOf(items);
  rank(items, links);
  const deepest = items.reduce((most, item) => Math.max(most, item.rank), 0);
  /** @type {Point[][]} */
  const layers = Array.from({ length: deepest + 1 }, () => []);
  for (const item of items) layers[item.rank].push(item);
  const edges = bend(links, layers);
  arrange(layers);
  return edges;
}

/** Return the links from the maker of each value to its users. @param {Item[]} items */
function linksOf(items) {
  /** @type {Map<number, Item>} */
  const maker = new Map();
  for (const item of items) for (const value of item.out) if (value) maker.set(value, item);
  /** @type {Map<number, {from: Item, to: Item}>} */
  const links = new Map();
  for (const to of items)
    for (const value of to.in) {
      const from = maker.get(value);
      if (from && from !== to) links.set(from.place * items.length + to.place, { from, to });
    }
  return [...links.values()];
}

/** Put each item below all items that it uses. @param {Item[]} items @param {{from: Item, to: Item}[]} links */
function rank(items, links) {
  const incoming = items.map(() => /** @type {Item[]} */ ([])), outgoing = items.map(() => /** @type {Item[]} */ ([]));
  for (const { from, to } of links) {
    incoming[to.place].push(from);
    outgoing[from.place].push(to);
  }
  for (const item of items) // a graph's nodes are sorted
    for (const from of incoming[item.place]) if (from.place < item.place) item.rank = Math.max(item.rank, from.rank + 1);
  for (const item of [...items].reverse()) { // an item without inputs is placed near its user
    const users = outgoing[item.place];
    if (!incoming[item.place].length && users.length) item.rank = Math.max(0, users.reduce((least, one) => Math.min(least, one.rank), Infinity) - 1);
  }
}

/**
 * Bend a long edge in each layer that it crosses. Edges from one item bend together.
 * @param {{from: Item, to: Item}[]} links @param {Point[][]} layers @returns {Edge[]}
 */
function bend(links, layers) {
  let bends = 0;
  /** @type {Map<number, Point>} */
  const bendOf = new Map();
  return links.map(({ from, to }) => {
    /** @type {Point[]} */
    const points = [from];
    for (let rank = from.rank + 1; rank < to.rank && bends < MAX_BENDS; rank++) {
      const key = from.place * layers.length + rank;
      let found = bendOf.get(key);
      if (!found) {
        found = { rank, width: 4, up: [], down: [], order: 0, wish: 0, x: 0, y: 0 };
        bendOf.set(key, found);
        layers[rank].push(found);
        bends++;
      }
      points.push(found);
    }
    points.push(to);
    for (let place = 1; place < points.length; place++) {
      const above = points[place - 1], below = points[place];
      if (!above.down.includes(below)) {
        above.down.push(below);
        below.up.push(above);
      }
    }
    return { from, to, points };
  });
}

/** @param {Point[]} points @param {(one: Point) => number} of */
const mean = (points, of) => points.reduce((sum, one) => sum + of(one), 0) / points.length;

/** Order each layer so that few edges cross, and set all positions. @param {Point[][]} layers */
function arrange(layers) {
  for (const layer of layers) layer.forEach((one, place) => { one.order = place; });
  for (let sweep = 0; sweep < 6; sweep++) {
    const down = sweep % 2 === 0;
    for (const layer of down ? layers : [...layers].reverse()) {
      for (const one of layer) {
        const near = down ? one.up : one.down;
        one.wish = near.length ? mean(near, other => other.order) : one.order;
      }
      layer.sort((one, other) => one.wish - other.wish).forEach((one, place) => { one.order = place; });
    }
  }
  layers.forEach((layer, rank) => {
    let x = 0;
    for (const one of layer) {
      one.x = x + one.width / 2;
      one.y = rank * (HEIGHT + GAP_Y);
      x += one.width + GAP_X;
    }
    for (const one of layer) one.x -= x / 2;
  });
  for (let sweep = 0; sweep < 12; sweep++)
    for (const layer of sweep % 2 === 0 ? layers : [...layers].reverse()) straighten(layer);
}

/** Move each item as near to the middle of its neighbours as its layer allows. @param {Point[]} layer */
function straighten(layer) {
  const wishes = layer.map(one => {
    const near = [...one.up, ...one.down];
    return near.length ? mean(near, other => other.x) : one.x;
  });
  const apart = (/** @type {number} */ place) => (layer[place - 1].width + layer[place].width) / 2 + GAP_X;
  const right = [...wishes], left = [...wishes];
  for (let place = 1; place < layer.length; place++) right[place] = Math.max(right[place], right[place - 1] + apart(place));
  for (let place = layer.length - 2; place >= 0; place--) left[place] = Math.min(left[place], left[place + 1] - apart(place + 1));
  layer.forEach((one, place) => { one.x = (right[place] + left[place]) / 2; });
}
